"""Runs the 22 TPC-H queries on a cluster of one scheduler and three executors, each a process, and compares them with DuckDB.

It checks the rows and their order, that every equi-join ran on HybridJoinExec, that executors stayed within their limit plus
250 MB, also while all of lineitem is sorted, and that they keep no files afterwards. Then executors are killed or stopped at random
moments while a query runs: its answer must be right, and be there within 60 s.
"""

import argparse
import concurrent.futures
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from run import TABLES, WITHOUT_JOIN, Failure, answers_of_duckdb, compare, joins, location, read_queries, size_in_bytes, spilled

EXECUTORS = 3
# Resident memory of an executor that is not query state: the program, Ballista, its connections, Parquet readers.
HEADROOM = 250_000_000
# How long after a query nothing may be left of it.
TIDY = 30
# How long after the loss of an executor a query may take to end.
RECOVERY = 60
TIME_LIMIT = 300
# Joins all lineitems twice; its build sides pass executors' limits.
LONG = (
    "SELECT count(*), sum(o_totalprice), max(b.l_extendedprice) FROM lineitem a JOIN orders ON a.l_orderkey = o_orderkey "
    "JOIN lineitem b ON a.l_orderkey = b.l_orderkey AND a.l_linenumber = b.l_linenumber"
)
# More rows than executors have memory, in one order, which one task merges.
SORTED = "SELECT l_comment, l_orderkey, l_linenumber, l_shipinstruct, l_shipmode FROM lineitem ORDER BY 1, 2, 3"


class Cluster:
    """The processes of a cluster."""

    def __init__(self, program, data, limit, threads, folder, settings):
        self.program, self.limit, self.threads, self.settings = program, limit, threads, settings
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.tables = [
            f"CREATE EXTERNAL TABLE {table} STORED AS PARQUET LOCATION '{location(data, table)}'" for table in TABLES
        ]
        self.scheduler, line = self.start(["scheduler", "--bind", "127.0.0.1:0"])
        self.address = line.removeprefix("scheduler ")
        self.executors = []
        for _ in range(EXECUTORS):
            self.add()

    def start(self, arguments):
        """Starts a process, and waits for the line that says that it serves."""
        process = subprocess.Popen([self.program, "cluster", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        line = process.stdout.readline().strip()
        if not line:
            raise Failure(f"{arguments[0]} ended with {process.wait()}")
        return process, line

    def add(self):
        arguments = ["executor", "--scheduler", self.address, "--memory-limit", self.limit, "--temp-dir", str(self.temporary)]
        self.executors.append(self.start([*arguments, "--threads", str(self.threads)])[0])

    def stop(self):
        for process in [*self.executors, self.scheduler]:
            process.terminate()
        for process in [*self.executors, self.scheduler]:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise Failure("a process of the cluster did not end when told to") from None

    def begin(self, statement):
        where = ["--cluster", self.address]
        for setting in self.settings:
            where += ["--set", setting]
        return self.begin_here(statement, where)

    def begin_here(self, statement, where=()):
        """Starts one statement without the cluster, unless the arguments say otherwise."""
        arguments = [self.program, *where, "--format", "csv", "--quiet"]
        for table in self.tables:
            arguments += ["-c", table]
        return subprocess.Popen(
            [*arguments, "-c", statement], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, statement):
        """Runs one statement; gives its output and its seconds."""
        started = time.monotonic()
        process = self.begin(statement)
        return finished(process), time.monotonic() - started

    def peak(self):
        """The most memory that an executor had, in bytes."""
        peaks = []
        for process in self.executors:
            status = Path(f"/proc/{process.pid}/status").read_text()
            peaks += [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")]
        return max(peaks)

    def left(self):
        # Folders may go meanwhile, which walk takes as empty.
        found = [Path(folder) / name for folder, _, names in os.walk(self.temporary) for name in names]
        return [path for path in found if path.name != ".overspill.lock"]

    def check_tidy(self):
        end = time.monotonic() + TIDY
        while (left := self.left()) and time.monotonic() < end:
            time.sleep(0.2)
        if left:
            raise Failure(f"files are left: {left}")


def finished(process):
    """The output of a query that must succeed."""
    try:
        output, errors = process.communicate(timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise Failure("no answer") from None
    if process.returncode != 0 or errors:
        raise Failure(f"exit status {process.returncode}: {errors[-2000:]}")
    return output


def check(cluster, number, sql, theirs):
    """Checks one query; gives a line about it."""
    text, seconds = cluster.run(sql)
    compare(theirs, text)
    plan, _ = cluster.run(f"EXPLAIN ANALYZE {sql}")
    ours, foreign = joins(plan)
    if foreign or (ours == 0) != (number in WITHOUT_JOIN):
        raise Failure(f"{ours} equi-joins are HybridJoinExec, {foreign} are not\n{plan}")
    return f"{seconds:6.1f} s  {ours} joins  {spilled(plan) / 1e6:6.1f} MB spilled"


def check_sorted(cluster):
    """Sorts all of lineitem; gives a line about it."""
    text, seconds = cluster.run(SORTED)
    if text != finished(cluster.begin_here(SORTED)):
        raise Failure("the rows are not those of one process, in their order")
    return f"{seconds:6.1f} s  {len(text) / 1e6:.0f} MB of rows"


def lose_one(cluster, generator, expected, usual, how):
    """Kills or stops an executor while a query runs, and starts another; gives a line about it."""
    process = cluster.begin(LONG)
    wait = generator.uniform(0.1, usual)
    time.sleep(wait)
    running = process.poll() is None
    victim = cluster.executors.pop(generator.randrange(len(cluster.executors)))
    victim.send_signal(how)
    lost = time.monotonic()
    try:
        output = finished(process)
    finally:
        victim.kill()
        victim.wait()
    seconds = time.monotonic() - lost
    if output != expected:
        raise Failure(f"after {wait:.2f} s an executor was lost, and the answer is {output!r}, not {expected!r}")
    if seconds > RECOVERY:
        raise Failure(f"the answer came {seconds:.0f} s after the loss")
    cluster.add()
    return f"{how.name} after {wait:5.2f} s, answered {seconds:5.1f} s later{'' if running else ' (it had ended)'}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overspill", required=True, help="the program")
    parser.add_argument("--data", required=True, type=Path, help="the folder of Parquet files")
    parser.add_argument("--limit", default="64MB", help="the memory of each executor [64MB]")
    parser.add_argument("--threads", default=2, type=int, help="the threads of each executor [2]")
    parser.add_argument("--queries", default="1-22", help="such as 1-22 or 9,18")
    parser.add_argument("--rounds", default=1, type=int, help="how often each query runs [1]")
    parser.add_argument("--kills", default=3, type=int, help="how many executors are killed [3]")
    parser.add_argument("--stops", default=0, type=int, help="how many executors fall silent, which takes longer to notice [0]")
    parser.add_argument("--seed", default=1, type=int, help="chooses the executors and the moments")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the sessions")
    arguments = parser.parse_args()
    data = arguments.data.resolve()
    queries = read_queries(arguments.queries)
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(max_workers=1, mp_context=spawn) as process:
        answers = process.submit(answers_of_duckdb, data, queries).result()

    failures = []

    def attempt(name, checked):
        try:
            line = checked()
        except Failure as failure:
            failures.append(name)
            line = f"FAILED: {failure}"
        print(f"{name:<8} {line}", flush=True)

    with tempfile.TemporaryDirectory(prefix="overspill-cluster-") as folder:
        cluster = Cluster(arguments.overspill, data, arguments.limit, arguments.threads, Path(folder), arguments.set)
        try:
            for _ in range(arguments.rounds):
                for number, sql in queries.items():
                    attempt(f"Q{number}", lambda number=number, sql=sql: check(cluster, number, sql, answers[number]))
                attempt("sorted", lambda: check_sorted(cluster))
                attempt("files", lambda: cluster.check_tidy() or "none is left")
                peak = cluster.peak()
                if peak > size_in_bytes(arguments.limit) + HEADROOM:
                    failures.append("memory")
                print(f"memory   an executor had {peak / 1e6:.0f} MB resident at most", flush=True)
            losses = [signal.SIGKILL] * arguments.kills + [signal.SIGSTOP] * arguments.stops
            if losses:
                expected, usual = cluster.run(LONG)
                generator = random.Random(arguments.seed)
                for how in losses:
                    attempt("loss", lambda how=how: lose_one(cluster, generator, expected, usual, how))
            while len(cluster.executors) < EXECUTORS:
                cluster.add()
            # What a killed one has left goes when another starts.
            attempt("files", lambda: cluster.check_tidy() or "none is left")
        finally:
            attempt("end", lambda: cluster.stop() or "all processes ended when told to")
    if failures:
        print(f"{len(failures)} failures: {' '.join(failures)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
