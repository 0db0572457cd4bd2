"""``python -m benchmarks [names] [--quick] [--output DIR] [--repeats 5] [--backbone DIR] [--data DIR]``."""

import importlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from pipeline.system import process

NAMES = (
    "stage_one",
    "fusion_block",
    "stage_two",
    "growth",
    "data",
    "jobs",
    "nodes",
    "stores",
    "studies",
    "ledgers",
    "choosing",
    "prediction",
    "serve",
    "many_models",
    "adapter_drop",
    "full_tuning",
    "regularised",
    "peers",
    "gpu",
)

app = App(
    name="python -m benchmarks",
    help="Measure speed and memory; the peers of a comparison take turns in one process.",
    version_flags=(),
    help_format="plaintext",
)


@app.default
def bench(
    *names: str,
    quick: Annotated[bool, Parameter(negative="")] = False,
    output: Path = Path("reports/benchmarks"),
    repeats: int = 5,
    backbone: Annotated[Path | None, Parameter(env_var="BENCH_BACKBONE")] = None,
    data: Annotated[Path | None, Parameter(env_var="BENCH_DATA")] = None,
    requests: int | None = None,
    rows: int | None = None,
) -> None:
    """Run benchmarks, print a table of each and write it as <output>/<name>.json.

    Parameters
    ----------
    names
        stage_one, fusion_block, stage_two, growth, data, jobs, nodes, stores, studies, ledgers, choosing,
        prediction, serve, many_models, adapter_drop, full_tuning, regularised, peers, gpu; by default all.
    quick
        Tiny sizes, to check that the benchmarks run; the numbers mean nothing.
    output
        Folder of the JSON files.
    repeats
        Measured rounds after a warm-up round; medians are reported.
    backbone
        Folder of an encoder; by default random weights of MiniLM's shape.
    data
        Folder with sst/train; by default generated rows of the same lengths; needs --backbone.
    requests
        Requests to the server (10,000; 200 with --quick).
    rows
        Rows of the benchmark data, instead of 10,000, 100,000 and 1,000,000.
    """
    if unknown := sorted({*names} - {*NAMES}):
        raise SystemExit(f"no benchmark {', '.join(unknown)}: choose from {', '.join(NAMES)}")
    requests = (200 if quick else 10_000) if requests is None else requests
    if requests < 1:
        raise SystemExit(f"--requests {requests}: give at least 1")
    if repeats < 1:
        raise SystemExit(f"--repeats {repeats}: give at least 1")
    if data is not None and backbone is None:
        raise SystemExit("--data needs --backbone: without a tokenizer real rows cannot be read")
    process.set_up()  # as `python -m pipeline` does, for both sides of a comparison
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from .setting import Setting

    with tempfile.TemporaryDirectory(prefix="benchmarks-") as scratch:
        setting = Setting(Path(scratch), output, quick, repeats, backbone, data, requests, rows)
        for name in names or NAMES:
            report = importlib.import_module(f".{name}", __package__).run(setting)
            print(f"\n## {name}\n\n{report.markdown()}", flush=True)
            report.write(output / f"{name}.json", name, setting)


def main(arguments: Sequence[str] | None = None) -> None:
    app(arguments, result_action="return_value")


if __name__ == "__main__":
    main()
