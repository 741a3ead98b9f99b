"""The workflow worker, on the SDK."""

import fleet as fleets


def echo(_context, given):
    return given


def waits(context, _given):
    return (yield context.wait_for_external_event("go"))


def fails(_context, given):
    raise ValueError(f"not {given}")


class Worker:
    """A worker of a sidecar, until it is closed."""

    def __init__(self, port):
        from durabletask.worker import TaskHubGrpcWorker
        self.worker = TaskHubGrpcWorker(host_address=f"{fleets.HOST}:{port}")
        for workflow in (echo, waits, fails):
            self.worker.add_orchestrator(workflow)
        self.worker.start()

    def close(self):
        self.worker.stop()
