"""Runs the 22 TPC-H queries on the overspill command line and compares them with DuckDB on the same Parquet files.

Per query and memory limit it checks the rows and their order, that every equi-join ran on HybridJoinExec, that the
filter and the aggregate of Q6 ran as one operator, on the emulated device if there is one, that the peak resident memory
stayed within the limit plus 200 MB, and that nothing is left in the temporary directory.
"""

import argparse
import concurrent.futures
import csv
import datetime
import decimal
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TABLES = ["customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier"]
# Resident memory that is not query state: the program itself, its threads, Parquet readers and their buffers.
HEADROOM = 200_000_000
# A query that takes longer is hung.
TIME_LIMIT = 900
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
# Q1 and Q6 read one table.
WITHOUT_JOIN = {1, 6}
# The filter and the aggregate of Q6 are one operator.
SELECTIONS = {6}
# With this setting all rows reach the joins.
PLAIN = ["overspill.membership_filters=false", "overspill.join_order=as_written"]


def size_in_bytes(text):
    number, unit = re.fullmatch(r"([\d.]+)\s*([A-Za-z]*)", text).groups()
    return int(float(number) * UNITS[unit.upper()])


def location(data, table):
    """Where a table lies: one file, or a folder of them."""
    file = data / f"{table}.parquet"
    return file if file.exists() else data / table


class Overspill:
    """The program with one memory limit."""

    def __init__(self, program, data, limit, settings, threads=None, tables=TABLES):
        self.program, self.limit, self.settings, self.threads = program, limit, settings, threads
        self.on_device = any(setting.startswith("overspill.device=") for setting in settings)
        self.rows = self.device_rows = self.spilled_by_device = 0
        self.tables = [
            f"CREATE EXTERNAL TABLE {table} STORED AS PARQUET LOCATION '{location(data, table)}'" for table in tables
        ]

    def run(self, statement, settings=()):
        """Runs one statement; gives its output, its error output, its peak memory in bytes and its seconds."""
        arguments = [self.program, "--format", "csv", "--quiet"]
        if self.limit != "ample":
            arguments += ["--memory-limit", self.limit]
        if self.threads is not None:
            arguments += ["--threads", str(self.threads)]
        for setting in [*self.settings, *settings]:
            arguments += ["--set", setting]
        with tempfile.TemporaryDirectory(prefix="overspill-tpch-") as folder:
            spill = Path(folder) / "spill"
            spill.mkdir()
            arguments += ["--temp-dir", str(spill)]
            for table in self.tables:
                arguments += ["-c", table]
            arguments += ["-c", statement]
            output, errors = Path(folder) / "output", Path(folder) / "errors"
            started = time.monotonic()
            with output.open("wb") as stdout, errors.open("wb") as stderr:
                process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
                alarm = threading.Timer(TIME_LIMIT, process.kill)
                alarm.start()
                peak = peak_memory(process)
                alarm.cancel()
            seconds = time.monotonic() - started
            if process.returncode != 0:
                raise Failure(f"exit status {process.returncode} after {seconds:.0f} s: {errors.read_text()[-2000:]}")
            left = [str(path) for path in spill.rglob("*") if path.is_file()]
            if left:
                raise Failure(f"files left in the temporary directory: {left}")
            return output.read_text(), peak, seconds


def peak_memory(process):
    """Waits for a process and gives the most memory that was resident, in bytes.

    The kernel's own mark is read again and again until the process ends: the figure that wait4 gives begins with the
    memory of the process that started it, here that of DuckDB."""
    peak = 0
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            break
        mark = re.search(r"VmHWM:\s*(\d+) kB", status)
        peak = max(peak, int(mark.group(1)) * 1024 if mark else 0)
        time.sleep(0.01)
    process.wait()
    return peak


class Failure(Exception):
    """A query that did not do what it must."""


def read_queries(numbers, folder=Path(__file__).parent / "queries"):
    """The text of each query of a folder, by its number. The numbers are written as 1-22 or 9,18."""
    queries = {}
    for part in numbers.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            text = (folder / f"q{number:02}.sql").read_text()
            lines = [line for line in text.splitlines() if not line.startswith("--")]
            queries[number] = "\n".join(lines).strip().rstrip(";")
    return queries


def answers_of_duckdb(data, queries):
    """DuckDB's rows for each query. It runs in a process of its own: a program that is started counts the memory of
    the process that starts it in its own peak, so that this one has to stay small."""
    import duckdb

    connection = duckdb.connect()
    for table in TABLES:
        path = location(data, table)
        connection.execute(f"CREATE VIEW {table} AS FROM '{path if path.is_file() else path / '*.parquet'}'")
    return {number: connection.execute(sql).fetchall() for number, sql in queries.items()}


def same(theirs, ours):
    """Whether DuckDB's value and the text of Overspill's mean the same. Averages of decimals are rounded by one engine
    and not by the other: numbers may differ by a millionth."""
    if theirs is None:
        return ours == ""
    if isinstance(theirs, (int, float, decimal.Decimal)):
        try:
            return abs(float(theirs) - float(ours)) <= 1e-6 * max(1.0, abs(float(theirs)))
        except ValueError:
            return False
    if isinstance(theirs, (datetime.date, datetime.datetime)):
        return theirs.isoformat() == ours.replace(" ", "T")
    return str(theirs) == ours


def compare(theirs, text):
    rows = list(csv.reader(text.splitlines()))[1:]
    if len(rows) != len(theirs):
        raise Failure(f"{len(rows)} rows, DuckDB has {len(theirs)}")
    for number, (expected, actual) in enumerate(zip(theirs, rows)):
        if len(expected) != len(actual) or not all(map(same, expected, actual)):
            raise Failure(f"row {number} is {actual}, DuckDB has {list(expected)}")


def joins(plan):
    """How many equi-joins of Overspill's and of DataFusion's a plan has."""
    return len(re.findall(r"\bHybridJoinExec:", plan)), len(re.findall(r"\b(?:HashJoin|SortMergeJoin)Exec:", plan))


def theta_joins(plan):
    """How many joins by other conditions a plan has."""
    return len(re.findall(r"\bThetaJoinExec:", plan))


def spilled(plan):
    """The bytes that the joins of an analyzed plan spilled."""
    total = 0
    for line in re.findall(r"HybridJoinExec:.*", plan):
        metric = re.search(r"\bspilled_bytes=([\d.]+)\s*([KMG]?i?B?)", line)
        if metric:
            total += size_in_bytes("".join(metric.groups()))
    return total


def count(plan, name, operator="HybridJoinExec"):
    """The sum of a metric that counts, over the joins of an analyzed plan, or over other operators."""
    total = 0
    for line in re.findall(rf"\b{operator}:.*", plan):
        metric = re.search(rf"\b{name}=([\d.]+)\s*([KMG]?)", line)
        if metric:
            total += float(metric.group(1)) * {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}[metric.group(2)]
    return total


def on_device(plan):
    """What device kernels did of the joins: their rows, and those that they took; bytes of state that the device's memory had
    no room for, and names of what went wrong."""
    rows = count(plan, "build_input_rows") + count(plan, "input_rows")
    joined = count(plan, "gpu_build_rows") + count(plan, "gpu_probe_rows")
    return rows, joined, count(plan, "gpu_spilled_bytes"), count(plan, "gpu_failures")


def selection(engine, plan):
    """Checks that the filter of an analyzed plan runs with its aggregate; gives a line about it."""
    rows, selected = (count(plan, name, "FilterAggregateExec") for name in ["input_rows", "selected_rows"])
    if not rows or re.search(r"\b(Adaptive)?FilterExec:", plan):
        raise Failure(f"no filter runs with its aggregate\n{plan}")
    if not engine.on_device:
        return f"  {selected / rows:.1%} of {rows / 1e6:.2f} M rows selected"
    taken, failed = (count(plan, name, "FilterAggregateExec") for name in ["gpu_rows", "gpu_failures"])
    if failed or taken < 0.9 * rows:
        raise Failure(f"the device selected among {taken / rows:.1%} of the rows\n{plan}")
    return f"  {taken / rows:6.1%} of {rows / 1e6:.2f} M rows on the device, {selected / rows:.1%} selected"


def check(engine, number, sql, theirs):
    """Checks one query under one limit; gives a line about it and the bytes it spilled."""
    text, peak, seconds = engine.run(sql)
    compare(theirs, text)
    plan, peak_of_plan, _ = engine.run(f"EXPLAIN ANALYZE {sql}")
    expected = sum(joins(engine.run(f"EXPLAIN {sql}", ["overspill.enabled=false"])[0]))
    ours, foreign = joins(plan)
    # In another order a few rows may be joined by a condition without an equality, and the next join then has more keys.
    if foreign or not ours <= expected <= ours + theta_joins(plan):
        raise Failure(f"{ours} of {expected} equi-joins are HybridJoinExec\n{plan}")
    if (expected == 0) != (number in WITHOUT_JOIN):
        raise Failure(f"{expected} equi-joins in a plan of Q{number}\n{plan}")
    peak = max(peak, peak_of_plan)
    if engine.limit != "ample" and peak > size_in_bytes(engine.limit) + HEADROOM:
        raise Failure(f"peak resident memory {peak / 1e6:.0f} MB under a limit of {engine.limit}")
    bytes_spilled = spilled(plan)
    line = f"{seconds:6.1f} s  peak {peak / 1e6:5.0f} MB  {ours} joins  {bytes_spilled / 1e6:6.1f} MB spilled"
    if number in SELECTIONS:
        line += selection(engine, plan)
    elif engine.on_device:
        rows, joined, spilled_by_device, failed = on_device(plan)
        engine.device_rows += joined
        engine.rows += rows
        engine.spilled_by_device += spilled_by_device
        line += f"  {joined / max(1, rows):6.1%} of {rows / 1e6:.2f} M rows on the device, {spilled_by_device / 1e6:.1f} MB beside it"
        if failed:
            raise Failure(f"the device failed\n{plan}")
    return line, bytes_spilled


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overspill", required=True, help="the program")
    parser.add_argument("--data", required=True, type=Path, help="the folder of Parquet files")
    parser.add_argument("--limits", default="ample,64MB", help="memory limits, comma-separated [ample,64MB]")
    parser.add_argument("--queries", default="1-22", help="such as 1-22 or 9,18")
    parser.add_argument(
        "--emulated",
        metavar="SIZES",
        help="memory of the emulated device in bytes, comma-separated: the queries run on it with each, most first, and with the "
        "least some state must lie beside it",
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the engine")
    arguments = parser.parse_args()

    data = arguments.data.resolve()
    queries = read_queries(arguments.queries)
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(max_workers=1, mp_context=spawn) as process:
        answers = process.submit(answers_of_duckdb, data, queries).result()

    failures = 0
    limits = arguments.limits.split(",")
    # Rows that are dropped at scans, and joins in a better order, leave joins little to spill.
    runs = [(limit, []) for limit in limits] + [(limit, PLAIN) for limit in limits if limit != "ample"]
    if arguments.emulated:
        first, *others = [[f"overspill.gpu_memory_limit={size}"] for size in arguments.emulated.split(",")]
        others = [[*settings, *PLAIN] for settings in others]
        device = [("ample", settings) for settings in [first, *others]]
        device += [("ample", [*device[-1][1], "overspill.strategy=triton"])]
        runs = [(limit, ["overspill.device=emulated", *settings]) for limit, settings in device]
    for limit, settings in runs:
        engine = Overspill(arguments.overspill, data, limit, [*arguments.set, *settings])
        if settings:
            print(f"With {' '.join(settings)}", flush=True)
        with_joins = spilling = 0
        for number, sql in queries.items():
            try:
                line, bytes_spilled = check(engine, number, sql, answers[number])
                with_joins += number not in WITHOUT_JOIN
                spilling += bytes_spilled > 0
            except Failure as failure:
                failures += 1
                line = f"FAILED: {failure}"
            print(f"Q{number:<2} {limit:>6}  {line}", flush=True)
        print(f"{limit}: joins spilled in {spilling} of {with_joins} queries with joins", flush=True)
        if settings == PLAIN and len(queries) == 22 and spilling < 4:
            failures += 1
            print(f"FAILED: a limit of {limit} makes too few joins spill")
        if engine.on_device and limit == "ample":
            print(f"{engine.device_rows / max(1, engine.rows):.1%} of {engine.rows / 1e6:.1f} M rows were joined by the device")
            if engine.device_rows < 0.9 * engine.rows:
                failures += 1
                print("FAILED: the device joined less than nine tenths of the rows")
            if settings != runs[0][1] and engine.spilled_by_device == 0:
                failures += 1
                print("FAILED: all state found room on the device")
    if failures:
        print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
