"""Runs the 22 TPC-H queries under mpirun, with several numbers of ranks, and compares them with DuckDB.

It checks the rows and their order, that every equi-join ran on HybridJoinExec, that each rank stayed within its limit plus 200 MB,
and that nothing is left in the temporary directory. All ranks copy the tables, a file a rank, and the queries run over these files, too;
`overspill join` counts and writes, and the network between ranks is measured. Then something fails at random moments while a query runs: a rank is killed, mpirun is interrupted, a
file is damaged, a rank may write no more. mpirun must end with an exit status that is not 0, and so must all processes, within 10 s; the
error names the rank, and no file is left but what a killed process has spilled.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from run import HEADROOM, TABLES, WITHOUT_JOIN, Failure, answers_of_duckdb, compare, joins, location, read_queries, size_in_bytes, spilled

TIME_LIMIT = 300
# How long mpirun may take to end when something has failed.
AFTER_FAILURE = 10
# Lets the rank with a number write files of 20 MB at most, and not end by the signal of that.
FULL = 'trap "" XFSZ; [ "$OMPI_COMM_WORLD_RANK" != {} ] || ulimit -f 40000; exec "$@"'
# The columns of an explanation.
PLAN = "plan_type,plan\n"
# Takes long enough to be killed in.
LONG = (
    "SELECT count(*), sum(o_totalprice), max(b.l_extendedprice) FROM lineitem a JOIN orders ON a.l_orderkey = o_orderkey "
    "JOIN lineitem b ON a.l_orderkey = b.l_orderkey AND a.l_linenumber = b.l_linenumber"
)


def statements(folder):
    """A query that takes long enough to fail in, and a statement that writes into a folder."""
    copy = f"COPY (SELECT * FROM lineitem JOIN orders ON l_orderkey = o_orderkey) TO '{folder}/out/' STORED AS PARQUET"
    return [LONG, copy]


def usual_seconds(arguments, ranks):
    """Nearly the time that each of these takes if nothing fails."""
    seconds = []
    for number in range(2):
        with tempfile.TemporaryDirectory(prefix="overspill-ranks-", dir=arguments.data) as folder:
            seconds.append(0.9 * Job(arguments, ranks, [statements(folder)[number]]).rows()[1])
    return seconds


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

    def __init__(self, arguments, ranks, statements, data=None, work=None, full=None):
        """Runs statements over the tables, or other work. One rank may write no more than some megabytes, as on a disk that is full."""
        self.ranks = ranks
        self.shared_memory = set(os.listdir("/dev/shm"))
        self.folder = tempfile.TemporaryDirectory(prefix="overspill-ranks-")
        folder = Path(self.folder.name)
        self.spill = folder / "spill"
        self.spill.mkdir()
        command = ["mpirun", "--oversubscribe", "-n", str(ranks)]
        if full is not None:
            command += ["sh", "-c", FULL.format(full), "sh"]
        command += [arguments.overspill] + (work or ["--format", "csv"])
        command += ["--quiet", "--memory-limit", arguments.limit, "--threads", str(arguments.threads), "--temp-dir", str(self.spill)]
        if arguments.ranks_per_node:
            command += ["--ranks-per-node", str(arguments.ranks_per_node)]
        for table in [] if work else TABLES:
            where = location(data or arguments.data, table)
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

    def failed(self, since, words=None):
        """Waits for the end of a run that has failed, and of all its processes; gives mpirun's status and the seconds since it failed,
        or since the start if that is not known."""
        status = self.wait(AFTER_FAILURE if since else TIME_LIMIT)
        if status == 0:
            raise Failure("mpirun ended with 0")
        end = (since or time.monotonic()) + AFTER_FAILURE
        while left := [process for process in self.seen if is_alive(process)]:
            if time.monotonic() > end:
                raise Failure(f"processes are left: {left}")
            time.sleep(0.05)
        seconds = time.monotonic() - (since or self.started)
        if left := set(os.listdir("/dev/shm")) - self.shared_memory:
            raise Failure(f"left in /dev/shm: {left}")
        errors = self.errors.read_text()
        if words is not None:
            if not re.search(words, errors):
                raise Failure(f"the error does not say {words!r}: {errors[-2000:]}")
            if left := [str(path) for path in self.spill.rglob("*") if path.is_file()]:
                raise Failure(f"files left in the temporary directory: {left}")
        return status, seconds


def check(arguments, ranks, number, sql, theirs, data):
    """Checks one query; gives a line about it."""
    text, seconds, peak = Job(arguments, ranks, [sql, f"EXPLAIN ANALYZE {sql}"], data).rows()
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


def fail_at_random(arguments, ranks, generator, usual, lines, fail):
    """Lets a run fail at a random moment of a query, or of a statement that writes all lines: these are there then, or none."""
    number = generator.randrange(2)
    with tempfile.TemporaryDirectory(prefix="overspill-ranks-", dir=arguments.data) as folder:
        job = Job(arguments, ranks, [statements(folder)[number]])
        wait = generator.uniform(0.1, usual[number])
        time.sleep(wait)
        what = fail(job)
        status, seconds = job.failed(time.monotonic())
        out = Path(folder) / "out"
        if out.exists():
            rows = Job(arguments, 1, [f"SELECT count(*) FROM '{out}/'"]).rows()[0].split()[-1]
            if rows != lines:
                raise Failure(f"{rows} of {lines} rows were put in place")
    query = ["query", "copy"][number]
    return f"{what} of {ranks} after {wait:4.2f} s of a {query}, all had ended {seconds:3.1f} s later, mpirun with {status}"


def kill_one(job, generator):
    """Kills a rank."""
    members = sorted(job.members())
    if not members:
        raise Failure("no rank was there to be killed")
    victim = generator.randrange(len(members))
    os.kill(members[victim], signal.SIGKILL)
    return f"rank {victim}"


def interrupt(job):
    """Sends mpirun what Ctrl-C does."""
    job.members()
    os.kill(job.process.pid, signal.SIGINT)
    return "mpirun"


def damage(arguments, ranks, generator, tables):
    """Damages a file of a table, all but its footer, so that it is read and not only planned with."""
    with tempfile.TemporaryDirectory(prefix="overspill-ranks-", dir=tables) as folder:
        for table in TABLES:
            shutil.copytree(tables / table, Path(folder) / table, copy_function=os.link)
        victim = generator.choice(sorted((Path(folder) / "lineitem").iterdir()))
        content = victim.read_bytes()
        # The copy is a link to the table's own file.
        victim.unlink()
        end = len(content) - 64 * 1024
        victim.write_bytes(content[:4] + b"\xff" * (end - 4) + content[end:])
        job = Job(arguments, ranks, [LONG], Path(folder))
        status, seconds = job.failed(None, re.escape(victim.name))
        return f"{victim.name} of {ranks} ranks, all had ended {seconds:3.1f} s after the start, mpirun with {status}"


def fill(arguments, ranks, generator):
    """Lets one rank write no more than some megabytes of what it has to."""
    victim = generator.randrange(ranks)
    with tempfile.TemporaryDirectory(prefix="overspill-ranks-") as folder:
        copy = f"COPY (SELECT * FROM lineitem JOIN orders ON l_orderkey = o_orderkey) TO '{folder}/out/' STORED AS CSV"
        job = Job(arguments, ranks, [copy], full=victim)
        who = f"rank {victim}: " if victim else "error: "
        status, seconds = job.failed(None, f"{who}.*(limit on the size of files|disk is full)")
        if left := list(Path(folder).rglob("*")):
            raise Failure(f"left behind: {left}")
    return f"rank {victim} of {ranks}, all had ended {seconds:3.1f} s after the start, mpirun with {status}"


def copy_tables(arguments, ranks, folder):
    """Copies the tables, each rank its part."""
    copies = [f"COPY {table} TO '{folder}/{table}/' STORED AS PARQUET" for table in TABLES]
    _, seconds, peak = Job(arguments, ranks, copies).rows()
    files = {table: len(list((folder / table).iterdir())) for table in TABLES}
    # A rank that has no row group of a table writes no file of it.
    if not 2 <= files["lineitem"] <= ranks:
        raise Failure(f"the ranks wrote files: {files}")
    if left := [path for path in folder.iterdir() if path.name.startswith(".")]:
        raise Failure(f"left behind: {left}")
    return f"{seconds:6.1f} s  {sum(files.values())} files  {peak / 1e6:4.0f} MB resident"


def join(arguments, ranks, tables):
    """Counts the rows of a join, and writes them."""
    sides = ["--left", f"{tables}/orders/", "--right", f"{tables}/lineitem/", "--on", "o_orderkey=l_orderkey"]
    expected = Job(arguments, 1, ["SELECT count(*) FROM lineitem"]).rows()[0].split()[-1]
    text, seconds, _ = Job(arguments, ranks, [], work=["join", *sides]).rows()
    if text.split()[-1] != expected:
        raise Failure(f"{text.split()[-1]} rows, not {expected}")
    with tempfile.TemporaryDirectory(prefix="overspill-ranks-") as folder:
        out = Path(folder) / "joined"
        _, writing, peak = Job(arguments, ranks, [], work=["join", *sides, "--output", str(out)]).rows()
        if len(list(out.iterdir())) != ranks:
            raise Failure(f"the ranks wrote {sorted(out.iterdir())}")
        sums = "SELECT count(*), sum(o_orderkey), sum(l_extendedprice * o_shippriority + o_totalprice) FROM "
        ours = Job(arguments, 1, [f"{sums} '{out}/'"]).rows()[0]
        theirs = Job(arguments, 1, [f"{sums} orders JOIN lineitem ON o_orderkey = l_orderkey"]).rows()[0]
        if ours.splitlines()[1:] != theirs.splitlines()[1:]:
            raise Failure(f"what is written has {ours!r}, not {theirs!r}")
    return f"{seconds:6.1f} s counted  {writing:6.1f} s written  {peak / 1e6:4.0f} MB resident"


def measure(arguments, ranks):
    """Measures the network between the ranks, twice; the second measurement takes the place of the first."""
    command = ["mpirun", "--oversubscribe", "-n", str(ranks), arguments.overspill, "machine", "--measure", "--json"]
    if arguments.ranks_per_node:
        command += ["--ranks-per-node", str(arguments.ranks_per_node)]
    with tempfile.TemporaryDirectory(prefix="overspill-ranks-") as cache:
        environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "XDG_CACHE_HOME": cache}
        for _ in range(2):
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=TIME_LIMIT)
            if done.returncode != 0:
                raise Failure(f"exit status {done.returncode}: {done.stderr[-2000:]}")
            # One rank speaks for all.
            networks = json.loads(done.stdout)["measured"]["networks"]
    if [network["ranks"] for network in networks] != [ranks]:
        raise Failure(f"measured: {networks}")
    levels = [networks[0][level] for level in ("within", "across") if networks[0][level]]
    nodes = -(-ranks // arguments.ranks_per_node) if arguments.ranks_per_node else 1
    if len(levels) != (nodes < ranks) + (nodes > 1) or any(rate <= 0 for level in levels for rate in level.values()):
        raise Failure(f"measured: {networks}")
    return ", ".join(f"{level['bytes_per_second'] / 1e9:.2f} GB/s after {level['latency'] * 1e6:.0f} us" for level in levels)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overspill", required=True, help="the program, with liboverspill_mpi.so beside it")
    parser.add_argument("--data", required=True, type=Path, help="the folder of Parquet files")
    parser.add_argument("--limit", default="64MB", help="the memory of each rank [64MB]")
    parser.add_argument("--threads", default=1, type=int, help="the threads of each rank [1]")
    parser.add_argument("--ranks", default="2,3,4,8", help="numbers of ranks [2,3,4,8]")
    parser.add_argument("--ranks-per-node", type=int, help="pretend that nodes have so many ranks")
    parser.add_argument("--queries", default="1-22", help="such as 1-22 or 9,18")
    parser.add_argument("--kills", default=3, type=int, help="how many ranks are killed, and how many runs fail otherwise in each way [3]")
    parser.add_argument("--copies", default="1-22", help="queries over a file a rank: such as 1-22 or 9,18")
    parser.add_argument("--seed", default=1, type=int, help="chooses the ranks and the moments")
    arguments = parser.parse_args()
    arguments.data = arguments.data.resolve()
    queries, copies = read_queries(arguments.queries), read_queries(arguments.copies)
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(max_workers=1, mp_context=spawn) as process:
        answers = process.submit(answers_of_duckdb, arguments.data, queries | copies).result()

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
        attempt(f"{ranks} ranks", lambda: measure(arguments, ranks))
        for number, sql in queries.items():
            attempt(f"{ranks} ranks Q{number}", lambda: check(arguments, ranks, number, sql, answers[number], None))
    generator = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="overspill-ranks-", dir=arguments.data) as folder:
        folder = Path(folder)
        tables = {ranks: folder / str(ranks) for ranks in numbers}
        for ranks in numbers:
            attempt(f"{ranks} ranks copy", lambda: copy_tables(arguments, ranks, tables[ranks]))
            for number, sql in copies.items():
                attempt(f"{ranks} files Q{number}", lambda: check(arguments, ranks, number, sql, answers[number], tables[ranks]))
            attempt(f"{ranks} ranks join", lambda: join(arguments, ranks, tables[ranks]))
        usual = {ranks: usual_seconds(arguments, ranks) for ranks in numbers if arguments.kills}
        lines = Job(arguments, 1, ["SELECT count(*) FROM lineitem"]).rows()[0].split()[-1]
        for _ in range(arguments.kills):
            ranks = generator.choice(numbers)
            for name, fail in [("kill", lambda job: kill_one(job, generator)), ("interrupt", interrupt)]:
                attempt(name, lambda: fail_at_random(arguments, ranks, generator, usual[ranks], lines, fail))
            attempt("damaged file", lambda: damage(arguments, ranks, generator, tables[ranks]))
            attempt("full disk", lambda: fill(arguments, ranks, generator))
    if failures:
        print(f"{len(failures)} failures: {' '.join(failures)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
