"""Runs sorts, windows, aggregates and their joins over TPC-H tables in a small memory limit, each alone and five in one
query, and compares them with DuckDB on the same Parquet files.

It also checks that the peak resident memory stayed within the limit and what docs/cli.md says that it does not count, and
that nothing is left in the temporary directory. The default limit suits scale factor 1; `--limits 256MB` is meant for scale
factor 10. `--short` runs some of the queries, each in a limit and with threads that have been too few for it before, and a
COPY to a partitioned folder.
"""

import argparse
import concurrent.futures
import multiprocessing
import os
import re
import sys
import tempfile
from pathlib import Path

from run import Failure, Overspill, answers_of_duckdb, compare, size_in_bytes

# Rows of a sorted table that are looked at: the last ones. The rows before them are skipped behind the sort.
LAST = 5
NUMBERED = "sum(number * (l_orderkey % 97)) AS numbers, sum(number) AS total, count(*) AS rows"

# A query that needs each of its rows once more than a hash table or a sort of all rows in memory could give it. In the
# text, {TABLE} is the number of rows of a table less those that are looked at.
QUERIES = {
    "order by text": "SELECT l_comment, l_orderkey, l_linenumber FROM lineitem "
    "ORDER BY l_comment, l_orderkey, l_linenumber OFFSET {lineitem}",
    "order by one text": "SELECT o_comment FROM orders ORDER BY o_comment OFFSET {orders}",
    "order by number": "SELECT l_extendedprice FROM lineitem ORDER BY l_extendedprice OFFSET {lineitem}",
    "order all columns": "SELECT * FROM lineitem ORDER BY l_shipmode DESC, l_comment, l_orderkey, l_linenumber "
    "OFFSET {lineitem}",
    "order and limit": "SELECT o_comment, o_orderkey FROM orders ORDER BY o_comment, o_orderkey LIMIT 5 OFFSET {orders}",
    "numbered rows": f"SELECT {NUMBERED} FROM (SELECT l_orderkey, row_number() OVER (PARTITION BY l_suppkey "
    "ORDER BY l_comment, l_orderkey, l_linenumber) AS number FROM lineitem)",
    "numbered table": f"SELECT {NUMBERED} FROM (SELECT l_orderkey, row_number() OVER "
    "(ORDER BY l_comment, l_orderkey, l_linenumber) AS number FROM lineitem)",
    "sums of partitions": f"SELECT {NUMBERED} FROM (SELECT l_orderkey, sum(l_linenumber) OVER (PARTITION BY l_partkey) "
    "AS number FROM lineitem)",
    "running sums": f"SELECT {NUMBERED} FROM (SELECT l_orderkey, sum(l_linenumber) OVER (PARTITION BY l_partkey "
    "ORDER BY l_orderkey, l_linenumber) AS number FROM lineitem)",
    "group by key": "SELECT count(*), sum(lines), max(price), max(comment) FROM (SELECT l_orderkey, count(*) AS lines, "
    "sum(l_extendedprice) AS price, max(l_comment) AS comment FROM lineitem GROUP BY l_orderkey)",
    "group by text": "SELECT count(*), sum(lines), max(price) FROM (SELECT l_comment, count(*) AS lines, "
    "max(l_extendedprice) AS price FROM lineitem GROUP BY l_comment)",
    "group by pairs": "SELECT count(*), sum(lines), max(price) FROM (SELECT l_partkey, l_suppkey, l_shipdate, "
    "count(*) AS lines, sum(l_extendedprice) AS price FROM lineitem GROUP BY l_partkey, l_suppkey, l_shipdate)",
    "distinct": "SELECT count(*), max(l_comment) FROM (SELECT DISTINCT l_orderkey, l_comment FROM lineitem)",
    "count distinct": "SELECT count(DISTINCT l_comment) FROM lineitem",
    "distinct of groups": "SELECT count(*), sum(dates) FROM (SELECT l_partkey, count(DISTINCT l_shipdate) AS dates "
    "FROM lineitem GROUP BY l_partkey)",
    "join of groups": "SELECT count(*), sum(lines), max(o_comment) FROM (SELECT l_orderkey, count(*) AS lines, "
    "max(l_comment) FROM lineitem GROUP BY l_orderkey) JOIN (SELECT DISTINCT o_orderkey, o_comment FROM orders) "
    "ON l_orderkey = o_orderkey",
    "five sorts": f"SELECT {NUMBERED} FROM ("
    + " UNION ALL ".join(
        f"SELECT l_orderkey, row_number() OVER (ORDER BY {key}, l_orderkey, l_linenumber) AS number FROM lineitem"
        for key in ["l_comment", "l_shipdate", "l_partkey", "l_extendedprice", "l_suppkey"]
    )
    + ")",
    "five groups": "SELECT "
    + ", ".join(f"count(*) FILTER (WHERE source = {source})" for source in range(5))
    + ", sum(lines) FROM ("
    + " UNION ALL ".join(
        f"SELECT {source} AS source, count(*) AS lines FROM lineitem GROUP BY {keys}"
        for source, keys in enumerate(
            ["l_orderkey", "l_comment", "l_partkey, l_suppkey", "l_partkey, l_shipdate", "l_orderkey, l_shipmode"]
        )
    )
    + ")",
    "five in one": "SELECT count(*), sum(lines), sum(number), sum(dates), max(comment), max(price) "
    "FROM (SELECT l_orderkey AS k1, count(*) AS lines FROM lineitem GROUP BY l_orderkey) "
    "JOIN (SELECT o_orderkey AS k2, row_number() OVER (ORDER BY o_comment, o_orderkey) AS number FROM orders) ON k1 = k2 "
    "JOIN (SELECT l_orderkey AS k3, count(DISTINCT l_shipdate) AS dates FROM lineitem GROUP BY l_orderkey) ON k1 = k3 "
    "JOIN (SELECT DISTINCT o_orderkey AS k4, o_comment AS comment FROM orders) ON k1 = k4 "
    "JOIN (SELECT l_orderkey AS k5, max(l_extendedprice) AS price FROM lineitem GROUP BY l_orderkey) ON k1 = k5",
}


# What the limit does not count, in bytes: of any query, and for each thread that reads a table.
UNCOUNTED = 140_000_000
UNCOUNTED_A_THREAD = 30_000_000
# What pages take beyond what operators hold in them: the limit divided by this.
PAGES_OF_LIMIT = 5
# A thread has at least so much of the limit.
LEAST_OF_A_THREAD = 8_000_000


# A query, a memory limit and a number of threads. Each failed, or took more resident memory than it may.
SHORT = [
    ("order by one text", "256MB", 2),
    ("order by text", "32MB", 2),
    ("numbered table", "32MB", 2),
    ("sums of partitions", "32MB", 2),
    ("group by key", "8MB", 2),
    ("group by text", "32MB", 64),
]
# Rows that a COPY writes to a folder for each of their seven ways of shipping.
COPIED = "SELECT l_orderkey, l_comment, l_quantity, l_shipmode FROM lineitem"
COPY_LIMIT = "64MB"


def summary_of_folder(path):
    """The rows and a sum of each folder of a partitioned table, by DuckDB."""
    import duckdb

    files = f"read_parquet('{path}/*/*.parquet', hive_partitioning = true)"
    return duckdb.sql(f"SELECT l_shipmode, count(*), sum(l_orderkey) FROM {files} GROUP BY ALL ORDER BY ALL").fetchall()


def check(engine, sql, theirs):
    """Checks the rows and the peak memory of a query; gives a line about it."""
    text, peak, seconds = engine.run(sql)
    compare(theirs, text)
    line = f"{seconds:6.1f} s  peak {peak / 1e6:5.0f} MB"
    limit = size_in_bytes(engine.limit)
    threads = max(1, min(engine.threads or os.cpu_count(), limit // LEAST_OF_A_THREAD))
    tables = len(re.findall(r"FROM (?:lineitem|orders)\b", sql))
    uncounted = UNCOUNTED + UNCOUNTED_A_THREAD * threads * tables + limit // PAGES_OF_LIMIT
    if peak > limit + uncounted:
        raise Failure(f"{line} is more than the limit and {uncounted / 1e6:.0f} MB")
    return line


def check_copy(engine, process, theirs):
    """Checks what a COPY to a partitioned folder writes; gives a line about it."""
    with tempfile.TemporaryDirectory(prefix="overspill-copy-") as folder:
        table = Path(folder) / "table"
        line = check(engine, f"COPY ({COPIED}) TO '{table}' STORED AS PARQUET PARTITIONED BY (l_shipmode)", [])
        written = process.submit(summary_of_folder, table).result()
    if written != theirs:
        raise Failure(f"{written} was written, and not {theirs}")
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overspill", required=True, help="the program")
    parser.add_argument("--data", required=True, type=Path, help="the folder of Parquet files")
    parser.add_argument("--limits", default="32MB", help="memory limits, comma-separated [32MB]")
    parser.add_argument("--queries", default="", help="only those whose names contain one of these words, comma-separated")
    parser.add_argument("--short", action="store_true", help="a few queries, each in a limit of its own, and a COPY")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the engine")
    arguments = parser.parse_args()

    data = arguments.data.resolve()
    words = arguments.queries.split(",")
    runs = [(name, limit, None) for limit in arguments.limits.split(",") for name in QUERIES]
    runs = [run for run in (SHORT if arguments.short else runs) if any(word in run[0] for word in words)]
    spawn = multiprocessing.get_context("spawn")
    failures = 0
    with concurrent.futures.ProcessPoolExecutor(max_workers=1, mp_context=spawn) as process:
        tables = {table: f"SELECT count(*) FROM {table}" for table in ["lineitem", "orders"]}
        counts = process.submit(answers_of_duckdb, data, tables).result()
        skipped = {table: rows[0][0] - LAST for table, rows in counts.items()}
        queries = {name: QUERIES[name].format(**skipped) for name, _, _ in runs}
        copied = f"SELECT l_shipmode, count(*), sum(l_orderkey) FROM ({COPIED}) GROUP BY ALL ORDER BY ALL"
        answers = process.submit(answers_of_duckdb, data, {**queries, "copy": copied}).result()
        checks = [
            (name, limit, lambda engine, name=name: check(engine, queries[name], answers[name]), threads)
            for name, limit, threads in runs
        ]
        if arguments.short:
            checks.append(("copy", COPY_LIMIT, lambda engine: check_copy(engine, process, answers["copy"]), 2))
        for name, limit, run, threads in checks:
            try:
                line = run(Overspill(arguments.overspill, data, limit, arguments.set, threads))
            except Failure as failure:
                failures += 1
                line = f"FAILED: {failure}"
            print(f"{name:<20} {limit:>6}  {line}", flush=True)
    if failures:
        print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
