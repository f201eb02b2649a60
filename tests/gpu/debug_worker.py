"""The package's TensorRT worker, with debug tensors: marked in what it builds, read from what it runs.

    EngineBackend("tensorrt-rtx", worker=debug_worker.COMMAND)

builds and opens engines through it, so that everything but the marks is what ships.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
COMMAND = (sys.executable, str(Path(__file__).resolve()))
for _folder in (HERE, HERE.parents[1], HERE.parents[1] / "model"):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

from andrea_export.targets.tensorrt import worker, worker_build  # noqa: E402  (this checkout's)


class DebugRunner(worker.EngineRunner):
    """An engine whose debug tensors are among its outputs."""

    def __init__(self, engine: str) -> None:
        import debug_tensors

        super().__init__(engine)
        self._listener = debug_tensors.attach(worker_build.import_tensorrt(), self.context)

    def run(self, feeds: Mapping[str, worker.Layout], folder: str) -> dict[str, worker.Layout]:
        """Every output, every debug tensor and the report on them, written into the folder."""
        import debug_tensors

        self._listener.tensors.clear()
        self._listener.problems.clear()
        outputs = super().run(feeds, folder)
        report = debug_tensors.report_tensor(self._listener.problems, self.context.engine.num_layers)
        shown = {**self._listener.tensors, debug_tensors.REPORT: report}
        recorded = {
            name: worker.write_tensor(tensor, Path(folder) / f"debug-{index}")
            for index, (name, tensor) in enumerate(shown.items())
        }
        return {**recorded, **outputs}


class DebugWorker(worker.Worker):
    """Marks in every build, reads in every run."""

    def build(self, request: dict[str, Any]) -> dict[str, Any]:
        """Builds an engine with debug tensors."""
        import debug_tensors

        return worker_build.build(request, self._replies.doing, mark=debug_tensors.mark)

    def open(self, engine: str) -> DebugRunner:
        """An engine, ready to run and be read."""
        return DebugRunner(engine)


if __name__ == "__main__":
    worker.main(DebugWorker)
