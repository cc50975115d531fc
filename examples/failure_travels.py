"""A failure reaches everything that depends on it, with its cause, and nothing else."""

import tidegate as tg


class BadChunkError(Exception):
    """What the broken step of this example raises."""


def broken_step() -> None:
    raise BadChunkError("chunk 3 is damaged")


def cause_of(point: tg.Submission | tg.Timepoint) -> BaseException | None:
    try:
        point.wait(timeout=60)
    except tg.SemaphoreFailedError as failure:
        return failure.__cause__
    return None


def main() -> None:
    with tg.open_device("cpu") as device:
        queue = device.queue()
        stages = tg.Semaphore(label="stages")
        other = tg.Semaphore(label="other")

        # Submitted before anything went wrong: a chain of three, and one that has nothing to do with it.
        last = queue.barrier(wait=stages.at(2), signal=stages.at(3))
        middle = queue.barrier(wait=stages.at(1), signal=stages.at(2))
        unrelated = queue.barrier(signal=other.at(1))
        first = queue.host_call(broken_step, signal=stages.at(1))

        unrelated.wait(timeout=60)
        causes = [cause_of(point) for point in (first, middle, last, stages.at(3))]
        print(f"everything behind it failed with: {causes[0]}")

        # The very same error, everywhere. The timeline has failed as well; the other one has not.
        assert all(cause is first.error for cause in causes)
        assert isinstance(first.error, BadChunkError)
        assert (stages.value, other.value, other.failure) == (0, 1, None)


if __name__ == "__main__":
    main()
