"""One recording, run for many buffers at once: slots are filled when the command buffer is executed."""

import numpy as np

import tidegate as tg

LENGTH, RUNS = 4_096, 8


def blend(workgroups, bindings, constants):
    target, source = (binding.view(np.float32) for binding in bindings)
    target += constants[0] * source


def main() -> None:
    base = np.linspace(0, 1, LENGTH, dtype=np.float32)
    with tg.open_device("cpu") as device:
        function = device.load(blend)["blend"]
        shared = device.upload(base)

        with device.record(label="blend") as commands:
            cleared = commands.fill(tg.slot(0), 0)
            commands.dispatch(
                function, (1, 1, 1), bindings=[tg.slot(0), shared], constants=[np.float32(2)], after=[cleared]
            )
            commands.barrier()
            commands.dispatch(function, (1, 1, 1), bindings=[tg.slot(0), tg.slot(1)], constants=[np.float32(1)])

        queues = device.queues
        targets = [device.allocate(base.nbytes) for _ in range(RUNS)]
        addends = [device.upload(np.full(LENGTH, i, dtype=np.float32)) for i in range(RUNS)]
        runs = [
            queues[i % len(queues)].execute(commands, bindings=[target, addend])
            for i, (target, addend) in enumerate(zip(targets, addends, strict=True))
        ]
        tg.wait_all(runs, timeout=60)
        results = [target.to_numpy(np.float32) for target in targets]
    print(f"one recording, {RUNS} runs on {len(queues)} queues")
    assert all(np.allclose(result, 2 * base + i) for i, result in enumerate(results))


if __name__ == "__main__":
    main()
