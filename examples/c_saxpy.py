"""A kernel in C, with a Python form for machines without a compiler; it runs on all cores, without the GIL."""

import numpy as np

import tidegate as tg

LENGTH = 1 << 20

C_SOURCE = """
tidegate_kernel void saxpy(const float *x, float *y, float a, uint32_t n) {
    tidegate_for(i, n) y[i] += a * x[i];
}
"""


def saxpy_in_python(workgroups, bindings, constants):
    x, y = (binding.view(np.float32) for binding in bindings)
    a, n = constants
    y[:n] += a * x[:n]


saxpy = tg.Kernel(
    "saxpy",
    cpu=[C_SOURCE, saxpy_in_python],
    bindings=2,
    constants=[np.float32, np.uint32],
    workgroup=(4096, 1, 1),
)


def main() -> None:
    generator = np.random.default_rng(7)
    x, y = generator.random(LENGTH, dtype=np.float32), generator.random(LENGTH, dtype=np.float32)
    with tg.open_device("cpu") as device:
        function = device.load(saxpy)["saxpy"]
        x_buffer, y_buffer = device.upload(x), device.upload(y)
        groups = function.workgroups_for(LENGTH)
        done = device.queue().dispatch(function, groups, bindings=[x_buffer, y_buffer], constants=[3.0, LENGTH])
        done.wait(timeout=60)
        result = y_buffer.to_numpy(np.float32)
    print(f"saxpy over {LENGTH} elements in {groups[0]} workgroups")
    assert np.allclose(result, y + np.float32(3) * x)


if __name__ == "__main__":
    main()
