"""What the daemon keeps of a data set, read without it: its file holds bars, and the features of those bars are what jobs are given."""
import subprocess

import numpy as np

import fh


def features(path, tick=0.01, max_gap=0):
    """The 40 features and sigma of every bar of a file: [bars, 41], F64."""
    out = subprocess.run([fh.BUILD / "tests" / "data" / "features", str(path), str(tick), str(max_gap)], capture_output=True, text=True,
                         timeout=4 * fh.DEADLINE_S, check=True).stdout
    return np.array([[float(x) for x in line.split(",")] for line in out.splitlines()])
