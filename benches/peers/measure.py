"""Runs a command and prints one JSON line: wall seconds, processor seconds and peak resident bytes of it and what it started.

The command's own output goes to standard error. The peak is that of the largest process, as the system reports it.
"""
import json
import resource
import subprocess
import sys
import time

start = time.perf_counter()
code = subprocess.call(sys.argv[1:], stdout=sys.stderr)
seconds = time.perf_counter() - start
used = resource.getrusage(resource.RUSAGE_CHILDREN)
if code != 0:
    sys.exit(code)
print(json.dumps({"seconds": seconds, "cpu_seconds": used.ru_utime + used.ru_stime, "peak_bytes": used.ru_maxrss * 1024}))
