# Two commands after a clone: `make run` and `make test`.
#
#   make run      execute every chapter on this machine and report a row per chapter
#   make lab      open a copy of the course, work/, in JupyterLab at chapter 00
#   make test     run every test, and every chapter twice: simulated and on processes
#   make quick    lint, types, tests that take seconds, one chapter: the author's loop
#   make lint     the linter and the types alone
#   make coverage  which lines of the library the unit tests run
#   make execute  write the chapters' outputs anew
#   make bench    measure the all-reduces, the start-up and the simulator
#   make sync     bring the library's code back into the cells that show it
#   make exercises  make exercises/ from solutions/, without answers
#   make wheelhouse  a folder of wheels for machines without a network
#   make site     build/site: the executed course as web pages, from its outputs
#   make slides   build/slides: the decks of the chapters alone
#   make browse   open every page of both in Chromium; none may ask another host
#   make gpus     every cell and every proven path on GPUs that are only pretended
#   make portable  chapters and unit tests with other kernels of torch, on 1 and 2 threads
#   make newest   make test with the newest torch, in an environment of its own
#   make colab    try the course with Colab's versions; needs Python 3.13
#
# NEWEST="torch==2.14.1" is for newest: that one instead.
# CHAPTERS="04" limits run, execute, sync, slides and colab to some chapters.
# BENCH="--quick" and other options are for bench.  OFFLINE=1 installs from the folder
# wheelhouse/ alone.
# SETTINGS="avx2-1" limits portable to some kernels and numbers of threads.
# SITE_URL="https://..." tells the pages of `site` where they will be published.

PYTHON ?= python3
TORCH ?= torch==2.13.0
NEWEST ?= torch
VENV ?= .venv
JUPYTER_FLAGS ?=
CHAPTERS ?=
BENCH ?=
SITE_URL ?=
SETTINGS ?= default-1 default-2 avx2-1 avx2-2 avx512-1 avx512-2
WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(8, 2 * os.cpu_count()))")
EXTRAS = lab,test
OFFLINE ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/installed
COLAB := $(VENV)/colab
COLAB_PYTHON ?=
GRADER := $(VENV)/grader
SITE := $(VENV)/site
# Tests that take seconds.
QUICK = $(addprefix tests/test_,$(addsuffix .py,repository workflow inline_code timeline runs \
    cluster costs schedule footprint catalogue badges messages gantt data model_zoo))
# Tests of files, which compute no floats: `portable` leaves them out.
OF_FILES = $(addprefix --ignore=tests/test_,$(addsuffix .py,assign badges containers \
    first_cell get_torch gradebook packaging repository site site_built slurm wheelhouse workflow \
    working_copy))
NOTEBOOKS = $(wildcard chapters/*.ipynb solutions/*.ipynb)
# On processes these would run as they run anyway: 01 to 03 start no ranks, and 16 says in
# which world they are.
RANKED = $(filter-out $(addprefix chapters/,01% 02% 03% 16%),$(wildcard chapters/*.ipynb))
PYTEST = $(BIN)/python -m pytest -q
NBVAL = -p tests.patient_kernels --nbval-current-env --nbval-cell-timeout=600
# KERNELS="" gives every notebook an interpreter of its own, as a user's has.
KERNELS ?= -p tests.forked_kernels
# Nothing is compiled that nobody imports; what is imported is compiled once and kept.
export PYTHONDONTWRITEBYTECODE :=
PIP = $(BIN)/pip install --no-compile
# A check of addresses in JSON, which no notebook has; every start of Jupyter, nbclient
# and pytest would spend seconds on its grammar. Those who import it do without.
SLIM = @$(BIN)/pip uninstall -q -y rfc3987-syntax

ifneq ($(OFFLINE),)
export PIP_NO_INDEX := 1
export PIP_FIND_LINKS := $(CURDIR)/wheelhouse
endif

# Tests do not measure the machine; what they predict is the same everywhere.
HERE = D2LPAR_HERE=$(CURDIR)/d2lpar/launch/records/2_cpu_cores_amd_epyc.json
PLAIN = env -u D2LPAR_BACKEND -u D2LPAR_RANKS D2LPAR_PROGRESS=0 $(HERE)
# Beside five others, threads of torch that wait for work must not spin: that took seconds
# of processor where the work takes hundredths.
units notebooks processes gpus: export OMP_WAIT_POLICY = passive

.PHONY: run lab test ready quick lint units coverage notebooks processes newest bench execute sync exercises setup
.PHONY: soak gpus wheelhouse site slides browse colab portable
.DEFAULT_GOAL := run

run: setup
	@$(BIN)/python -m d2lpar run $(CHAPTERS)

lab: setup
	@$(BIN)/python -m d2lpar lab $(JUPYTER_FLAGS)

execute: setup
	@$(BIN)/python -m d2lpar execute $(CHAPTERS)

bench: setup
	@$(BIN)/python -m bench $(BENCH)

sync: setup
	@$(BIN)/python -m d2lpar sync $(CHAPTERS)

exercises: setup $(GRADER)
	@$(BIN)/python -m d2lpar exercises $(CHAPTERS)

# The packages that are installed here, without torch, which is large and of one machine.
wheelhouse: ready
	@$(BIN)/pip freeze -q --all --exclude-editable --path $$($(BIN)/python -c '$(PURELIB)') | \
	    grep -vE '^(torch|triton|nvidia-.*|cuda-.*)(==| @)' > $(VENV)/wheels.txt
	@$(BIN)/pip wheel -q --no-deps -w wheelhouse -r $(VENV)/wheels.txt rfc3987-syntax
	@echo "Copy the folder wheelhouse/ into the other clone, and type there: make run OFFLINE=1"

# Warnings are errors: a link that leads nowhere ends the build.
site: setup $(SITE)
	@$(BIN)/python site/collect.py build/pages
	@SITE_URL="$(SITE_URL)" $(BIN)/python -m sphinx -W --keep-going -q -j auto \
	    -c site build/pages build/site
	@$(BIN)/python site/make_slides.py build/site/slides
	@$(BIN)/python site/offline.py build/site
	@echo "build/site/index.html"

slides: setup $(SITE)
	@mkdir -p build/slides
	@$(BIN)/python site/make_slides.py build/slides $(CHAPTERS)
	@$(BIN)/python site/offline.py build/slides

browse: $(SITE)
	@$(PIP) -q selenium
	@$(BIN)/python site/browse.py build/site
	@test ! -d build/slides || $(BIN)/python site/browse.py build/slides

# Every phase runs, even where an earlier one fails. Many tests wait, so there are more
# workers than most machines have cores to spare.
test: ready
	@$(MAKE) --no-print-directory --keep-going lint units notebooks processes

# In one go, which is faster than three.
ready: EXTRAS = lab,test,instructor,site
ready: setup $(GRADER) $(SITE)

quick: setup lint
	@echo "== quick tests"
	@$(PLAIN) $(PYTEST) -n 2 --dist worksteal $(QUICK)
	@$(PLAIN) $(PYTEST) -n 0 --nbval $(NBVAL) chapters/00*.ipynb

lint: setup
	@echo "== lint and types"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m mypy

# Among them are the answers of the zoo: to judge them takes processors, most others wait.
units:
	@echo "== unit tests, and answers to the exercises, judged"
	@$(PLAIN) $(PYTEST) -n $(WORKERS) --dist worksteal --durations=20 $(LEFT_OUT) tests \
	    d2lpar/cli/test_gpu.py

# Kills at random for minutes; a short form is among the unit tests.
soak: setup
	@$(PLAIN) $(BIN)/python tests/soak.py $(KILLS)

# Tensors of the host that count as a GPU's, and raise where CUDA would; half an hour.
# A short form is among the unit tests.
gpus: export D2LPAR_PRETEND = 4
gpus: export D2LPAR_SMALL = 1
gpus: export PYTHONPATH := $(CURDIR)/tests/pretend/site-packages
gpus: export MPLBACKEND = Agg
gpus: setup
	@$(PLAIN) $(BIN)/python tests/pretend/whole.py $(NOTEBOOKS)

# What is compared was printed where there is no GPU.
notebooks: export CUDA_VISIBLE_DEVICES =
notebooks:
	@echo "== chapters and solutions, outputs compared"
	@$(PLAIN) $(PYTEST) -n $(WORKERS) --dist loadscope --nbval $(NBVAL) $(KERNELS) $(NOTEBOOKS)

processes:
	@echo "== chapters on real processes, outputs not compared"
	@D2LPAR_BACKEND=gloo D2LPAR_PROGRESS=0 $(HERE) $(PYTEST) -n $(WORKERS) --dist loadscope --nbval-lax $(NBVAL) \
	    $(KERNELS) $(RANKED)

# Which lines of the library the unit tests run in this process; what ranks run that are
# processes of their own is not seen.
coverage: ready
	@$(PIP) -q "pytest-cov>=5.0"
	@$(PLAIN) $(PYTEST) -n $(WORKERS) --dist worksteal --cov=d2lpar \
	    --cov-report=term tests

# No output shows on which processor it was made: notebooks, compared, and the unit tests
# with PyTorch's plain kernels and with those for AVX2 and AVX-512, on one thread and two.
portable: CAN = $(BIN)/python -c "import torch; print(torch.backends.cpu.get_cpu_capability())"
portable: ready
	@mkdir -p build/portable; can=$$(env -u ATEN_CPU_CAPABILITY $(CAN)); failed=; \
	for setting in $(SETTINGS); do \
	    kernels=$${setting%-*}; threads=$${setting#*-}; log=build/portable/$$setting.txt; \
	    case "$$kernels on $$can" in \
	        default*) mkl=COMPATIBLE ;; \
	        "avx2 on AVX"*|"avx512 on AVX512") mkl= ;; \
	        *) echo "left out, because torch has only $$can here" > $$log; continue ;; \
	    esac; \
	    echo "== $$setting"; \
	    env ATEN_CPU_CAPABILITY=$$kernels $${mkl:+MKL_CBWR=$$mkl} \
	        OMP_NUM_THREADS=$$threads MKL_NUM_THREADS=$$threads $(MAKE) --keep-going \
	        --no-print-directory notebooks units LEFT_OUT="$(OF_FILES)" > $$log 2>&1 || \
	        { failed="$$failed $$setting"; cat $$log; }; \
	done; \
	for setting in $(SETTINGS); do \
	    echo "$$setting:" $$(grep -hE "passed.* in [0-9]|failed.* in [0-9]|left out" build/portable/$$setting.txt); \
	done; \
	test -z "$$failed" || { echo "Red:$$failed"; exit 1; }

newest:
	@test -x $(VENV)/newest/bin/python || $(PYTHON) -m venv $(VENV)/newest
	@$(VENV)/newest/bin/pip install --no-compile --upgrade "$(NEWEST)"
	@$(MAKE) --no-print-directory test VENV=$(VENV)/newest

# Colab's packages in a folder of their own.  The first cell of a chapter installs
# d2lpar, from a wheel of this clone; then each chapter runs where the clone is not.
colab: export PYDEVD_DISABLE_FILE_VALIDATION = 1
colab:
	@test -x $(COLAB)/bin/python || { \
	    python=$$(COLAB_PYTHON="$(COLAB_PYTHON)" sh tests/colab/find_python.sh) && \
	    "$$python" -m venv $(COLAB); }
	@$(COLAB)/bin/python -c "$(HAS)" torch || $(COLAB)/bin/pip install "torch==2.11.*"
	@$(COLAB)/bin/pip install -q -r tests/colab/versions.txt
	@$(COLAB)/bin/pip uninstall -q -y d2lpar d2l
	@rm -rf $(COLAB)/wheels $(COLAB)/chapters && mkdir $(COLAB)/chapters
	@$(COLAB)/bin/pip wheel -q --no-deps -w $(COLAB)/wheels .
	@cp $(or $(foreach n,$(CHAPTERS),$(wildcard chapters/$(n)*)),chapters/*.ipynb) \
	    $(COLAB)/chapters
	@env -u PYTHONPATH $(COLAB)/bin/python tests/colab/first_cell.py \
	    chapters/00_start.ipynb $(COLAB)/wheels/d2lpar-*.whl
	@$(COLAB)/bin/pip install -q nbval pytest
	@env -u PYTHONPATH $(PLAIN) $(COLAB)/bin/python -m pytest -q --nbval-lax $(NBVAL) \
	    $(COLAB)/chapters/*.ipynb

setup: $(STAMP)

# A torch that is there is used and kept: first the one in $(VENV), then the one that
# $(PYTHON) has (a path file lets $(VENV) see it). Where there is none, $(TORCH), and
# without an NVIDIA driver its build for the CPU if there is one.
$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c "$(HAS)" torch || $(PYTHON) -c "$(WHERE_TORCH)" \
	    > "$$($(BIN)/python -c '$(PURELIB)')/torch_of_python.pth"
	@$(BIN)/python -c "$(HAS)" torch || $(BIN)/python authoring/get_torch.py "$(TORCH)"
	@$(BIN)/python -c "$(KEEP_TORCH)" > $(VENV)/keep.txt
	$(PIP) -q -c $(VENV)/keep.txt -e ".[$(EXTRAS)]"
	$(SLIM)
	@$(PIP) -q --no-deps d2l==1.0.3 || \
	    echo "Warning: d2l 1.0.3 was not installed. The course runs without it."
	@touch $@

# nbgrader puts a menu of its own into JupyterLab, which only instructors want.
$(GRADER): $(STAMP)
	@$(BIN)/python -c "$(HAS)" nbgrader || $(PIP) -q -c $(VENV)/keep.txt -e ".[instructor]"
	$(SLIM)
	@touch $@

$(SITE): $(STAMP)
	@$(BIN)/python -c "$(HAS)" furo || $(PIP) -q -c $(VENV)/keep.txt -e ".[site]"
	$(SLIM)
	@touch $@

HAS = import importlib.util as u, sys; raise SystemExit(not u.find_spec(sys.argv[1]))
WHERE_TORCH = import importlib.util as u, os; s = u.find_spec('torch'); \
    print(os.path.dirname(os.path.dirname(s.origin)) if s else '')
KEEP_TORCH = from importlib.metadata import version; print('torch==' + version('torch'))
PURELIB = import sysconfig; print(sysconfig.get_path("purelib"))
