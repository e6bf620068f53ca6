"""Runs the 22 TPC-H queries under mpirun, with several numbers of ranks, and compares them with DuckDB.

It checks the rows and their order, that every equi-join ran on HybridJoinExec, that each rank stayed within its limit plus 200 MB,
and that nothing is left in the temporary directory. Then ranks are killed at random moments while a query runs: mpirun must end,
with an exit status that is not 0, and so must all processes, within 10 s.
"""

import argparse
import concurrent.futures
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from run import HEADROOM, TABLES, WITHOUT_JOIN, Failure, answers_of_duckdb, compare, joins, location, read_queries, size_in_bytes, spilled

TIME_LIMIT = 300
# How long mpirun may take to end when a rank was killed.
AFTER_KILL = 10
# The columns of an explanation.
PLAN = "plan_type,plan\n"
# Takes long enough to be killed in.
LONG = (
    "SELECT count(*), sum(o_totalprice), max(b.l_extendedprice) FROM lineitem a JOIN orders ON a.l_orderkey = o_orderkey "
    "JOIN lineitem b ON a.l_orderkey = b.l_orderkey AND a.l_linenumber = b.l_linenumber"
)


def parent_of(process):
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def is_alive(process):
    """Whether a process runs. One that has ended may wait for a parent that does not ask."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (OSError, IndexError):
        return False


class Job:
    """A run of the program under mpirun."""

    def __init__(self, arguments, ranks, statements):
        self.ranks = ranks
        self.folder = tempfile.TemporaryDirectory(prefix="overspill-ranks-")
        folder = Path(self.folder.name)
        self.spill = folder / "spill"
        self.spill.mkdir()
        command = ["mpirun", "--oversubscribe", "-n", str(ranks), arguments.overspill, "--format", "csv", "--quiet"]
        command += ["--memory-limit", arguments.limit, "--threads", str(arguments.threads), "--temp-dir", str(self.spill)]
        if arguments.ranks_per_node:
            command += ["--ranks-per-node", str(arguments.ranks_per_node)]
        for table in TABLES:
            where = location(arguments.data, table)
            command += ["-c", f"CREATE EXTERNAL TABLE {table} STORED AS PARQUET LOCATION '{where}'"]
        for statement in statements:
            command += ["-c", statement]
        # mpirun does not start for root unless it is told twice.
        environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        self.output, self.errors = folder / "output", folder / "errors"
        self.peak, self.seen = 0, set()
        self.started = time.monotonic()
        with self.output.open("wb") as stdout, self.errors.open("wb") as stderr:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment, start_new_session=True
            )

    def members(self):
        """The processes of the ranks that are there."""
        found = [int(name) for name in os.listdir("/proc") if name.isdigit() and parent_of(name) == self.process.pid]
        self.seen.update(found)
        return found

    def note_peak(self):
        for process in self.members():
            try:
                status = Path(f"/proc/{process}/status").read_text()
            except OSError:
                continue
            mark = re.search(r"VmHWM:\s*(\d+) kB", status)
            self.peak = max(self.peak, int(mark.group(1)) * 1024 if mark else 0)

    def wait(self, seconds):
        """Waits until mpirun has ended; gives its exit status."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            self.note_peak()
            if time.monotonic() > end:
                os.killpg(self.process.pid, signal.SIGKILL)
                for process in self.members():
                    os.kill(process, signal.SIGKILL)
                self.process.wait()
                raise Failure(f"mpirun did not end within {seconds} s: {self.errors.read_text()[-1000:]}")
            time.sleep(0.05)
        return self.process.returncode

    def rows(self):
        """What a run that must succeed has printed, its seconds, and the most memory that a rank had."""
        status = self.wait(TIME_LIMIT)
        seconds = time.monotonic() - self.started
        if status != 0:
            raise Failure(f"exit status {status}: {self.errors.read_text()[-2000:]}")
        left = [str(path) for path in self.spill.rglob("*") if path.is_file()]
        if left:
            raise Failure(f"files left in the temporary directory: {left}")
        return self.output.read_text(), seconds, self.peak


def check(arguments, ranks, number, sql, theirs):
    """Checks one query; gives a line about it."""
    text, seconds, peak = Job(arguments, ranks, [sql, f"EXPLAIN ANALYZE {sql}"]).rows()
    text, _, plan = text.partition(PLAN)
    compare(theirs, text)
    if peak > size_in_bytes(arguments.limit) + HEADROOM:
        raise Failure(f"a rank had {peak / 1e6:.0f} MB resident")
    ours, foreign = joins(plan)
    if foreign or (ours == 0) != (number in WITHOUT_JOIN):
        raise Failure(f"{ours} equi-joins are HybridJoinExec, {foreign} are not\n{plan}")
    if "RankQueryExec" not in plan:
        raise Failure(f"one rank has run it alone\n{plan}")
    return f"{seconds:6.1f} s twice  {ours} joins  {spilled(plan) / 1e6:6.1f} MB spilled by the first  {peak / 1e6:4.0f} MB resident"


def kill_one(arguments, ranks, generator, usual):
    """Kills a rank while a query runs; gives a line about it."""
    job = Job(arguments, ranks, [LONG])
    wait = generator.uniform(0.1, usual)
    time.sleep(wait)
    members = sorted(job.members())
    if not members:
        raise Failure(f"after {wait:.2f} s no rank was there to be killed")
    victim = generator.randrange(len(members))
    os.kill(members[victim], signal.SIGKILL)
    killed = time.monotonic()
    status = job.wait(AFTER_KILL)
    if status == 0:
        raise Failure("mpirun ended with 0")
    while left := [process for process in job.seen if is_alive(process)]:
        if time.monotonic() > killed + AFTER_KILL:
            raise Failure(f"processes are left: {left}")
        time.sleep(0.05)
    seconds = time.monotonic() - killed
    return f"rank {victim} of {ranks} after {wait:4.2f} s, all had ended {seconds:3.1f} s later, mpirun with {status}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overspill", required=True, help="the program, with liboverspill_mpi.so beside it")
    parser.add_argument("--data", required=True, type=Path, help="the folder of Parquet files")
    parser.add_argument("--limit", default="64MB", help="the memory of each rank [64MB]")
    parser.add_argument("--threads", default=1, type=int, help="the threads of each rank [1]")
    parser.add_argument("--ranks", default="2,3,4,8", help="numbers of ranks [2,3,4,8]")
    parser.add_argument("--ranks-per-node", type=int, help="pretend that nodes have so many ranks")
    parser.add_argument("--queries", default="1-22", help="such as 1-22 or 9,18")
    parser.add_argument("--kills", default=3, type=int, help="how many ranks are killed [3]")
    parser.add_argument("--seed", default=1, type=int, help="chooses the ranks and the moments")
    arguments = parser.parse_args()
    arguments.data = arguments.data.resolve()
    queries = read_queries(arguments.queries)
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(max_workers=1, mp_context=spawn) as process:
        answers = process.submit(answers_of_duckdb, arguments.data, queries).result()

    failures = []

    def attempt(name, checked):
        try:
            line = checked()
        except Failure as failure:
            failures.append(name)
            line = f"FAILED: {failure}"
        print(f"{name:<14} {line}", flush=True)

    numbers = [int(number) for number in arguments.ranks.split(",")]
    for ranks in numbers:
        for number, sql in queries.items():
            attempt(f"{ranks} ranks Q{number}", lambda ranks=ranks, number=number, sql=sql: check(arguments, ranks, number, sql, answers[number]))
    generator = random.Random(arguments.seed)
    usual = {ranks: Job(arguments, ranks, [LONG]).rows()[1] for ranks in numbers if arguments.kills}
    for _ in range(arguments.kills):
        ranks = generator.choice(numbers)
        attempt("kill", lambda ranks=ranks: kill_one(arguments, ranks, generator, 0.9 * usual[ranks]))
    if failures:
        print(f"{len(failures)} failures: {' '.join(failures)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
