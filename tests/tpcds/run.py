"""Runs the 99 TPC-DS queries on the overspill command line and compares them with DataFusion's own operators.

Per query and memory limit it checks the rows and their order, that every equi-join is planned as HybridJoinExec, that the
peak resident memory stayed within the limit plus 200 MB, and that nothing is left in the temporary directory. The default
limits suit scale factor 0.01.
"""

import argparse
import concurrent.futures
import csv
import io
import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tpch"))

from run import HEADROOM, PLAIN, Failure, Overspill, joins, read_queries, size_in_bytes, spilled

STOCK = ["overspill.enabled=false"]
# Sums of floating-point numbers that were added in another order differ by this part.
ROUNDING = 1e-9
# Queries whose joins must spill under a limit.
SPILLING = {72}
# Queries that need a limit of their own: DataFusion groups by grouping sets, and does not always find the memory to spill them.
LEAST_LIMITS = {67: "64MB"}


def same(theirs, ours):
    """Whether two texts of values mean the same."""
    if theirs == ours:
        return True
    try:
        return "." in theirs and abs(float(theirs) - float(ours)) <= ROUNDING * abs(float(theirs))
    except ValueError:
        return False


def rows_of(text):
    return list(csv.reader(io.StringIO(text)))


def explained(engine, sql):
    """A query's plan, the names of its columns, its rows, its peak memory in bytes and its seconds."""
    text, peak, seconds = engine.run(f"EXPLAIN {sql}; {sql}")
    # EXPLAIN prints a row of column names, the logical plan and the physical plan. The physical one runs.
    _, _, (_, plan), header, *rows = rows_of(text)
    return plan, header, rows, peak, seconds


def difference(theirs, ours):
    """How rows differ from DataFusion's, in words; nothing if they do not."""
    if len(theirs) != len(ours):
        return f"{len(ours)} rows, DataFusion has {len(theirs)}"
    for number, (expected, actual) in enumerate(zip(theirs, ours)):
        if len(expected) != len(actual) or not all(map(same, expected, actual)):
            return f"row {number} is {actual}, DataFusion has {expected}"
    return ""


def in_total_order(sql, columns):
    """The query with all of its columns as last sort keys: the rows with equal keys are then in the same order, and within the
    same limit, in every run."""
    match = re.search(r"\slimit\s+\d+\s*$", sql, re.IGNORECASE)
    body, limit = (sql[: match.start()], match.group()) if match else (sql, "")
    keys = re.split(r"\border\s+by\b", body, flags=re.IGNORECASE)
    is_ordered = len(keys) > 1 and keys[-1].count("(") == keys[-1].count(")")
    numbers = ", ".join(str(column) for column in range(1, columns + 1))
    return f"{body}{', ' if is_ordered else ' ORDER BY '}{numbers}{limit}"


class Query:
    """A query with DataFusion's plan and answer, and its answer in a total order once that is needed."""

    def __init__(self, stock, number, sql):
        self.stock, self.number, self.sql = stock, number, sql
        self.plan, self.header, self.rows, _, _ = explained(stock, sql)
        self.ordered = None

    def compare(self, engine, rows):
        found = difference(self.rows, rows)
        if found:
            sql = in_total_order(self.sql, len(self.header))
            if self.ordered is None:
                self.ordered = rows_of(self.stock.run(sql)[0])
            found = difference(self.ordered, rows_of(engine.run(sql)[0]))
        if found:
            raise Failure(found)


def check(engine, query):
    """Checks one query under one limit; gives a line about it."""
    plan, _, rows, peak, seconds = explained(engine, query.sql)
    query.compare(engine, rows)
    ours, foreign = joins(plan)
    # A part of the query that runs once has its joins once.
    if foreign or (sum(joins(query.plan)) > 0) != (ours > 0):
        raise Failure(f"{ours} joins are HybridJoinExec and {foreign} are not\n{plan}")
    line = f"{seconds:5.1f} s  {len(rows):4} rows  peak {peak / 1e6:5.0f} MB  {ours} joins"
    if engine.limit == "ample":
        return line
    if query.number in SPILLING:
        plan, peak_of_plan, _ = engine.run(f"EXPLAIN ANALYZE {query.sql}")
        peak = max(peak, peak_of_plan)
        if spilled(plan) == 0:
            raise Failure(f"no join spills in {engine.limit}\n{plan}")
        line += f"  {spilled(plan) / 1e6:.1f} MB spilled"
    if peak > size_in_bytes(engine.limit) + HEADROOM:
        raise Failure(f"peak resident memory {peak / 1e6:.0f} MB under a limit of {engine.limit}")
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overspill", required=True, help="the program")
    parser.add_argument("--data", required=True, type=Path, help="the folder of Parquet files")
    parser.add_argument("--limits", default="ample,16MB", help="memory limits, comma-separated [ample,16MB]")
    parser.add_argument("--queries", default="1-99", help="such as 1-99 or 9,18")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the engine")
    arguments = parser.parse_args()

    data = arguments.data.resolve()
    tables = sorted(file.stem for file in data.glob("*.parquet"))
    texts = read_queries(arguments.queries, Path(__file__).parent / "queries")

    def engine(limit, settings):
        return Overspill(arguments.overspill, data, limit, settings, threads=2, tables=tables)

    stock = engine("ample", [*arguments.set, *STOCK])
    def engines(number):
        for limit in arguments.limits.split(","):
            if limit == "ample":
                yield engine(limit, arguments.set)
            else:
                # Rows that are dropped at scans, and joins in a better order, leave joins little to spill.
                limit = max(limit, LEAST_LIMITS.get(number, limit), key=size_in_bytes)
                yield engine(limit, [*arguments.set, *PLAIN])

    def run(number):
        """The lines about a query, and how many of them are failures."""
        lines, failures = [], 0
        try:
            query = Query(stock, number, texts[number])
        except Failure as failure:
            return [f"Q{number:<2} DataFusion  FAILED: {failure}"], 1
        for one in engines(number):
            try:
                line = check(one, query)
            except Failure as failure:
                line = f"FAILED: {failure}"
                failures += 1
            lines.append(f"Q{number:<2} {one.limit:>6}  {line}")
        return lines, failures

    failures = 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for lines, failed in pool.map(run, texts):
            failures += failed
            print("\n".join(lines), flush=True)
    if failures:
        print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
