"""A shell over an engine of Python's, for `overspill bench peers` and the benchmarks, such as `overspill bench tpch`.

    python -c SCRIPT ENGINE THREADS

It says its version, and then runs the statements that come on standard input, one a line, as Overspill's own shell
does: rows as CSV on standard output, `time N SECONDS` on standard error after the N-th. `LOAD NAME PATH` makes a table
in memory of a Parquet file, in the way that the engine has it, and `SCAN NAME PATH` a table that is read from the file.
"""

import csv
import os
import queue
import sys
import tempfile
import threading
import time


class DuckDb:
    def __init__(self, threads):
        import duckdb

        self.version = duckdb.__version__
        config = {"threads": threads, "temp_directory": tempfile.gettempdir()}
        self.connection = duckdb.connect(config=config)
        # It takes a script without a file for a person.
        self.connection.execute("SET enable_progress_bar = false")
        # Where nulls come among sorted rows decides which rows a limit leaves.
        self.connection.execute("SET default_null_order = 'nulls_last_on_asc_first_on_desc'")

    def load(self, name, path):
        path = path.replace("'", "''")
        self.connection.execute(f"CREATE TABLE {name} AS SELECT * FROM read_parquet('{path}')")

    def scan(self, name, path):
        path = path.replace("'", "''")
        self.connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{path}')")

    def rows(self, sql):
        return self.connection.execute(sql).fetchall()

    def create(self, name, query):
        self.connection.execute(f"CREATE TABLE {name} AS {query}")

    def drop(self, name):
        self.connection.execute(f"DROP TABLE {name}")


class Polars:
    def __init__(self, threads):
        # It is read when the module is loaded.
        os.environ["POLARS_MAX_THREADS"] = str(threads)
        import polars

        self.version = polars.__version__
        self.read, self.lazy = polars.read_parquet, polars.scan_parquet
        self.tables = polars.SQLContext(eager=False)

    def load(self, name, path):
        self.tables.register(name, self.read(path))

    def scan(self, name, path):
        self.tables.register(name, self.lazy(path))

    def frame(self, sql):
        return self.tables.execute(sql).collect(engine="streaming")

    def rows(self, sql):
        return self.frame(sql).rows()

    def create(self, name, query):
        self.tables.register(name, self.frame(query))

    def drop(self, name):
        self.tables.unregister(name)


class DataFusion:
    def __init__(self, threads):
        # It is read when the first query starts the threads.
        os.environ["TOKIO_WORKER_THREADS"] = str(threads)
        import datafusion

        self.version = datafusion.__version__
        self.context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(threads))

    def load(self, name, path):
        self.context.register_parquet("file", path)
        self.create(name, "SELECT * FROM file")
        self.context.deregister_table("file")

    def scan(self, name, path):
        self.context.register_parquet(name, path)

    def rows(self, sql):
        batches = self.context.sql(sql).collect()
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]

    def create(self, name, query):
        # Runs at once, unlike a query.
        self.context.sql(f"CREATE TABLE {name} AS {query}")

    def drop(self, name):
        self.context.sql(f"DROP TABLE {name}")


def run(engine, statement):
    """The rows of a statement; none if it returns nothing."""
    words = statement.split(" ", 2)
    if words[0] == "LOAD":
        engine.load(words[1], words[2])
    elif words[0] == "SCAN":
        engine.scan(words[1], words[2])
    elif words[:2] == ["CREATE", "TABLE"]:
        name, query = words[2].split(" AS ", 1)
        engine.create(name, query)
    elif words[:2] == ["DROP", "TABLE"]:
        engine.drop(words[2])
    else:
        return engine.rows(statement)
    return None


def statements():
    """The lines of standard input. When it ends nobody waits for an answer any more, so that the process ends then."""
    lines = queue.SimpleQueue()

    def read():
        for line in sys.stdin:
            lines.put(line.rstrip("\n").removesuffix(";"))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield lines.get()


def main():
    engine = {"duckdb": DuckDb, "polars": Polars, "datafusion": DataFusion}[sys.argv[1]](int(sys.argv[2]))
    print("version", engine.version, flush=True)
    for number, statement in enumerate(statements(), 1):
        start = time.perf_counter()
        rows = run(engine, statement)
        seconds = time.perf_counter() - start
        if rows is not None:
            # What comes out together is written together.
            lines = csv.writer(sys.stdout, lineterminator="\n")
            lines.writerow(["header"])
            lines.writerows(rows)
            sys.stdout.flush()
        print(f"time {number} {seconds:.6f}", file=sys.stderr, flush=True)


try:
    main()
except BaseException as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    # An ordinary end would wait for the thread that reads.
    os._exit(1)
