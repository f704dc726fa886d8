"""Settings of every test, the notebooks' cells included."""

import os

# what a cell shows is compared, and a bar is different every time
os.environ.setdefault("TQDM_DISABLE", "1")
