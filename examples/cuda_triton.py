"""A kernel that Triton compiled, run as a submission like any other. Needs no PyTorch."""

import re

import numpy as np

import tidegate as tg
from tidegate import lowlevel

try:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
except ImportError:
    triton = None
else:

    @triton.jit
    def saxpy(x, a, y, n, block: tl.constexpr):
        i = tl.program_id(0) * block + tl.arange(0, block)
        inside = i < n
        tl.store(y + i, a * tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside), mask=inside)


LENGTH = 100_000
BLOCK = 1024


def what_is_missing() -> str:
    """Why this cannot run here; nothing if it can."""
    driver = next(driver for driver in tg.list_drivers() if driver.name == "cuda")
    if not driver.available:
        return driver.reason
    return "" if triton else "Triton is not installed"


def compile_saxpy(capability):
    """Compile for a GPU by its compute capability; Triton needs no GPU for that."""
    types = {"x": "*fp32", "a": "fp32", "y": "*fp32", "n": "i32", "block": "constexpr"}
    return triton.compile(
        ASTSource(saxpy, types, constexprs={"block": BLOCK}),
        target=GPUTarget("cuda", int(capability.replace(".", "")), 32),
        options={"num_warps": 4, "enable_fp_fusion": True},
    )


def hidden_parameters(compiled, known):
    """How many pointers Triton has added behind the parameters we know; it differs between its versions."""
    parameters = re.search(r"\.entry\s+\w+\s*\((.*?)\)", compiled.asm["ptx"], re.DOTALL)
    return parameters.group(1).count(".param") - known


def load(device, compiled):
    """The function, its parameters in Triton's order: x, a, y, n, and then the hidden ones."""
    facts = compiled.metadata
    loaded = device.load(compiled.asm["cubin"], options=(f"workgroup={32 * facts.num_warps}",))[facts.name]
    hidden = hidden_parameters(compiled, known=4)
    return lowlevel.with_parameters(loaded, "bcbc" + "c" * hidden), [np.uint64(0)] * hidden


def main() -> None:
    missing = what_is_missing()
    if missing:
        print(f"nothing to do here: {missing}")
        return
    x, y = np.arange(LENGTH, dtype=np.float32), np.ones(LENGTH, dtype=np.float32)
    with tg.open_device("cuda") as device:
        compiled = compile_saxpy(device.info.details["compute_capability"])
        # The hidden pointers lead to scratch memory. A kernel that asks for none gets null pointers.
        assert not getattr(compiled.metadata, "global_scratch_size", 0)
        function, hidden = load(device, compiled)
        x_buffer, y_buffer = device.upload(x), device.upload(y)
        device.queue().dispatch(
            function,
            -(-LENGTH // BLOCK),
            bindings=[x_buffer, y_buffer],
            constants=[np.float32(2), np.int32(LENGTH), *hidden],
            local_memory=compiled.metadata.shared,
        )
        result = y_buffer.to_numpy(np.float32, timeout=60)
    print(f"Triton's saxpy over {LENGTH} elements: {result[:3]}")
    assert np.array_equal(result, 2 * x + 1)


if __name__ == "__main__":
    main()
