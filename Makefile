# Every target is one command of tools/tasks.py, which needs nothing but Python >= 3.11:
# where there is no make, run `python tools/tasks.py book` (or test, student, lab, bench, record, ...) instead.

PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3 python,$(shell command -v $(p) 2>/dev/null)))

.PHONY: help setup setup-vllm book student test test-vllm test-full bench record lab

help:
	@$(PYTHON) tools/tasks.py --help

setup setup-vllm book student test test-vllm test-full bench record lab:
	@$(PYTHON) tools/tasks.py $@
