"""Measures what rows between the tasks of a cluster take, with each value of overspill.shuffle_compression.

It runs the keys of lineitem joined with those of orders, then the 22 queries, on one scheduler and three executors, with the values in
turn. Per value it prints the bytes of the files between tasks, the bytes that passed the loopback interface, and the median of the
seconds. Executors read all rows over the network with --remote.
"""

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from cluster import Cluster
from run import read_queries

KEYS = "SELECT count(*) FROM lineitem JOIN orders ON l_orderkey = o_orderkey"
VALUES = ["cascaded", "off"]


class Files:
    """Sees the files of executors while a query runs; those between tasks stay until the query ends."""

    def __init__(self, folder):
        self.folder, self.sizes, self.ended = folder, {}, threading.Event()
        self.thread = threading.Thread(target=self.look)

    def look(self):
        while not self.ended.is_set():
            for folder, _, names in os.walk(self.folder):
                for name in names:
                    try:
                        path = os.path.join(folder, name)
                        self.sizes[path] = max(self.sizes.get(path, 0), os.stat(path).st_size)
                    except OSError:
                        pass
            time.sleep(0.02)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    def between_tasks(self):
        """Bytes of what tasks leave for others, without what they spill meanwhile."""
        return sum(size for path, size in self.sizes.items() if os.path.basename(path).startswith("data"))


def loopback():
    """Bytes that the loopback interface has received."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overspill", required=True, help="the program")
    parser.add_argument("--data", required=True, type=Path, help="the folder of Parquet files")
    parser.add_argument("--limit", default="64MB", help="the memory of each executor [64MB]")
    parser.add_argument("--threads", default=2, type=int, help="the threads of each executor [2]")
    parser.add_argument("--rounds", default=3, type=int, help="how often each value runs [3]")
    parser.add_argument("--remote", action="store_true", help="executors read also their own rows over the network")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the sessions")
    arguments = parser.parse_args()
    sets = {"keys": {0: KEYS}, "queries": read_queries("1-22")}
    measured = {(name, value): [] for name in sets for value in VALUES}
    with tempfile.TemporaryDirectory(prefix="overspill-shuffle-") as folder:
        data = arguments.data.resolve()
        remote = [f"ballista.shuffle.force_remote_read={str(arguments.remote).lower()}"]
        cluster = Cluster(arguments.overspill, data, arguments.limit, arguments.threads, Path(folder), [])
        try:
            for _ in range(arguments.rounds):
                for name, queries in sets.items():
                    for value in VALUES:
                        cluster.settings = [*arguments.set, *remote, f"overspill.shuffle_compression={value}"]
                        seconds = files = 0
                        before = loopback()
                        for sql in queries.values():
                            with Files(cluster.temporary) as seen:
                                seconds += cluster.run(sql)[1]
                            files += seen.between_tasks()
                        measured[name, value].append((seconds, files, loopback() - before))
        finally:
            cluster.stop()
    for (name, value), runs in measured.items():
        seconds, files, network = (statistics.median(column) for column in zip(*runs))
        print(f"{name:<8} {value:<9} {seconds:7.2f} s  files {files / 1e6:7.2f} MB  loopback {network / 1e6:7.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
