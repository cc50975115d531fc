"""A kernel of ours on PyTorch's memory and back, without a copy and without a device-wide wait."""

import numpy as np

import tidegate as tg

try:
    import torch
except ImportError:
    torch = None

LENGTH = 1 << 20

CUDA_SOURCE = """
extern "C" __global__ void saxpy(const float *x, float *y, float a, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
"""

saxpy = tg.Kernel("saxpy", cuda=CUDA_SOURCE, bindings=2, constants=[np.float32, np.uint32], workgroup=(256, 1, 1))


def what_is_missing() -> str:
    """Why this cannot run here; nothing if it can."""
    driver = next(driver for driver in tg.list_drivers() if driver.name == "cuda")
    if not driver.available:
        return driver.reason
    if torch is None:
        return "PyTorch is not installed"
    return "" if torch.cuda.is_available() else "this PyTorch has no CUDA"


def main() -> None:
    missing = what_is_missing()
    if missing:
        print(f"nothing to do here: {missing}")
        return
    with tg.open_device("cuda") as device:
        function = device.load(saxpy)["saxpy"]  # before work runs: to load code, CUDA waits for it
        x = torch.arange(LENGTH, dtype=torch.float32, device="cuda")
        y = torch.ones(LENGTH, dtype=torch.float32, device="cuda")

        # In: the same memory. `ready` is the moment at which PyTorch's stream has written it.
        ours = [tg.from_dlpack(tensor, device=device) for tensor in (x, y)]
        device.queue().dispatch(
            function,
            function.workgroups_for(LENGTH),
            bindings=[view.buffer for view in ours],
            constants=[2.0, LENGTH],
            wait=[view.ready for view in ours],
        )

        # Back: PyTorch's stream is made to wait for the dispatch.
        result = torch.from_dlpack(ours[1])
        total = (result - 1 - 2 * x).abs().sum().item()
        print(f"saxpy over {LENGTH} elements of PyTorch's, in place: {result[:3].tolist()}")
        assert total == 0
        assert result.data_ptr() == y.data_ptr()


if __name__ == "__main__":
    main()
