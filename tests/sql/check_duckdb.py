"""Checks the answers of the files of tests/sql with DuckDB, or writes them.

    check_duckdb.py [FILE …]           compares every answer that DuckDB can give; all files if none is named
    check_duckdb.py --write FILE …     puts DuckDB's answers into these files

Records under `skipif duckdb` or `onlyif overspill`, and those that expect an error, are not asked.
"""

import datetime
import decimal
import math
import sys
from pathlib import Path

import duckdb

LETTERS = {
    "BOOLEAN": "B",
    "VARCHAR": "T",
    "DOUBLE": "R",
    "FLOAT": "R",
    "DATE": "D",
    "TIME": "D",
    "TIMESTAMP": "D",
    "TIMESTAMP WITH TIME ZONE": "D",
}
INTEGERS = {f"{sign}{name}" for name in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT") for sign in ("", "U")}


class Record:
    """A statement or query of a file, with the lines that it takes there."""

    def __init__(self, first, conditions, head, sql, answer, last):
        self.first, self.conditions, self.head = first, conditions, head
        self.sql, self.answer, self.last = sql, answer, last

    @property
    def is_query(self):
        return self.head[0] == "query"

    @property
    def expects_error(self):
        return self.head[1] == "error"

    @property
    def is_asked(self):
        return not self.expects_error and not {"skipif duckdb", "onlyif overspill"} & set(self.conditions)


def records_of(lines):
    """The records of a file, in order. `last` is the line behind the record."""
    found, conditions, at = [], [], 0
    while at < len(lines):
        line = lines[at].rstrip()
        words = line.split()
        if not words or line.startswith("#"):
            conditions = [] if not words else conditions
            at += 1
            continue
        if words[0] in ("skipif", "onlyif"):
            conditions.append(line)
            at += 1
            continue
        if words[0] not in ("statement", "query"):
            raise ValueError(f"line {at + 1}: {line!r} begins no record")
        first, at, sql, answer = at, at + 1, [], None
        while at < len(lines) and lines[at].strip() and lines[at].strip() != "----":
            sql.append(lines[at].rstrip())
            at += 1
        if at < len(lines) and lines[at].strip() == "----":
            answer, at = [], at + 1
            while at < len(lines) and lines[at].strip():
                answer.append(lines[at].rstrip())
                at += 1
        found.append(Record(first, conditions, words, "\n".join(sql), answer, at))
        conditions = []
    return found


def letter_of(kind):
    name = str(kind)
    if name in INTEGERS:
        return "I"
    if name.startswith("DECIMAL"):
        return "R"
    return LETTERS.get(name, "?")


def spelled(value):
    """A value as the files spell it."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case float() if math.isnan(value):
            return "NaN"
        case float():
            return repr(value).replace("e+", "e")
        case decimal.Decimal():
            return format(value, "f")
        case datetime.datetime():
            text = value.strftime("%Y-%m-%d %H:%M:%S")
            zone = value.strftime("%z")
            return f"{text}{zone[:3]}:{zone[3:5]}" if zone else text
        case datetime.date():
            return value.isoformat()
        case _:
            return " ".join(str(value).split()) or "(empty)"


def answer_of(cursor, record):
    """DuckDB's letters and lines for a query."""
    letters = "".join(letter_of(column[1]) for column in cursor.description)
    rows = [[spelled(value) for value in row] for row in cursor.fetchall()]
    if record.head[-1] == "rowsort":
        rows.sort(key=lambda row: [value.encode() for value in row])
    return letters, [" ".join(row) for row in rows]


def run(path, write):
    """Runs one file. Gives how many queries were asked, and what differs."""
    lines = path.read_text().split("\n")
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    asked, differences, written = 0, [], []
    for record in records_of(lines):
        if not record.is_asked:
            continue
        place = f"{path}:{record.first + 1}"
        try:
            cursor = connection.execute(record.sql)
            if not record.is_query:
                continue
            letters, answer = answer_of(cursor, record)
        except duckdb.Error as error:
            differences.append(f"{place}: DuckDB cannot run it: {error}\n{record.sql}")
            continue
        asked += 1
        if write:
            head = " ".join(["query", letters, *record.head[2:]])
            written.append((record, [head, *record.sql.split("\n"), "----", *answer]))
        elif (letters, answer) != (record.head[1], record.answer or []):
            differences.append(
                f"{place}\n{record.sql}\n  the file: {record.head[1]} {record.answer}\n  DuckDB:   {letters} {answer}"
            )
    for record, text in reversed(written):
        lines[record.first : record.last] = text
    if write:
        path.write_text("\n".join(lines))
    return asked, differences


def main():
    arguments = sys.argv[1:]
    write = "--write" in arguments
    paths = [Path(argument) for argument in arguments if argument != "--write"]
    if write and not paths:
        sys.exit("--write needs the names of the files to change")
    paths = paths or sorted(Path(__file__).parent.glob("**/*.slt"))
    total, differences = 0, []
    for path in paths:
        asked, found = run(path, write)
        total += asked
        differences.extend(found)
    for difference in differences:
        print(difference)
    print(f"DuckDB {duckdb.__version__}: {total} queries of {len(paths)} files, {len(differences)} differences")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
