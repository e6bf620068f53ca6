"""Has DuckDB answer the cases of differential tests and compares its rows with Overspill's.

Called by a test with the list of cases: per case its number, its SQL in DuckDB's dialect, and a folder with its tables
and Overspill's answer as Parquet files. Rows are compared as multisets, NULL being equal to NULL and NaN to NaN.
"""

import json
import sys
from pathlib import Path

import duckdb


def difference(connection, case):
    """The rows that only one of the two engines has, as text; empty if there are none."""
    folder = Path(case["folder"])
    for table in case["tables"]:
        # Not a view: DuckDB takes the statistics of Parquet files for bounds of NaN, too, which they leave out.
        connection.execute(f"CREATE OR REPLACE TABLE {table} AS FROM read_parquet('{folder / table}.parquet')")
    theirs = case["sql"]
    ours = f"FROM read_parquet('{folder / 'result.parquet'}')"
    found = []
    for name, left, right in (("DuckDB", theirs, ours), ("Overspill", ours, theirs)):
        rows = connection.execute(f"({left}) EXCEPT ALL ({right})").fetchmany(6)
        if rows:
            found.append(f"  only {name} has rows such as")
            found.extend(f"    {row}" for row in rows[:5])
    return "\n".join(found)


def connect():
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def main():
    cases = json.loads(Path(sys.argv[1]).read_text())
    connection = connect()
    failures = 0
    crashes = 0
    for case in cases:
        try:
            found = difference(connection, case)
        except duckdb.InternalException as error:
            # A fault of DuckDB's planner, after which the connection cannot be used. Many of them would hide something.
            crashes += 1
            print(f"case {case['number']}: DuckDB has an internal error: {str(error).splitlines()[0]}")
            connection = connect()
            found = "" if crashes * 50 <= len(cases) else "  DuckDB has too many internal errors"
        except duckdb.Error as error:
            found = f"  DuckDB cannot run it: {error}"
        if found:
            failures += 1
            print(f"case {case['number']}\n  {case['sql']}\n{found}")
            print(f"  again: {case['again']}")
    print(f"DuckDB {duckdb.__version__} agrees on {len(cases) - failures - crashes} of {len(cases)} queries")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
