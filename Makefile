# Two commands after a clone: `make run` and `make test`.
#
#   make run      execute every chapter on this machine and report a row per chapter;
#                 FURTHER=1 their Further parts, too
#   make lab      open a copy of the course, work/, in JupyterLab at chapter 00
#   make test     run the tests of the day: every chapter and solution, some on processes
#   make thorough  run all others, an hour; PART=site runs a part of it
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
#   make lock     write constraints.txt, the versions that `make run` and `make test` install
#   make newest   make test with the newest of everything, in an environment of its own
#   make oldest   the same with every lower bound of pyproject.toml
#   make colab    try the course with Colab's versions; needs Python 3.13
#
# NEWEST="torch==2.14.1" is for newest: that torch instead.
# CONSTRAINTS= takes the newest version of every package, and another file other ones.
# CHAPTERS="04" limits run, execute, sync, slides and colab to some chapters.
# BENCH="--quick" and other options are for bench.  OFFLINE=1 installs from the folder
# wheelhouse/ alone.
# SETTINGS="avx2-1 avx512-2" gives portable other kernels and numbers of threads.
# SITE_URL="https://..." tells the pages of `site` where they will be published.

PYTHON ?= python3
TORCH ?= torch==2.13.0
NEWEST ?= torch
OLDEST ?= torch==2.11.0
CONSTRAINTS ?= constraints.txt
VENV ?= .venv
JUPYTER_FLAGS ?=
CHAPTERS ?=
BENCH ?=
SITE_URL ?=
SETTINGS ?= default-1 avx2-2
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
NOTEBOOKS = $(wildcard chapters/*.ipynb chapters/further/*.ipynb solutions/*.ipynb)
# By day these run on processes, at night all but 01 to 03, which start no ranks, and 16,
# which says in which world they are.
RANKED = $(filter $(addprefix chapters/,00% 04% 06% 13%),$(NOTEBOOKS))
PYTEST = $(BIN)/python -m pytest -q
NBVAL = -p tests.portless_kernels --nbval-current-env --nbval-cell-timeout=600
# KERNELS="" gives every notebook an interpreter of its own, as a user's has.
KERNELS ?= -p tests.forked_kernels
# Nothing is compiled that nobody imports; what is imported is compiled once and kept.
export PYTHONDONTWRITEBYTECODE :=
PIP = $(BIN)/pip install --no-compile
# The tested versions of everything, and the torch that is there.
INSTALL = $(BIN)/python authoring/install.py -c "$(CONSTRAINTS)" -c $(VENV)/keep.txt
# All but torch and what comes with CUDA; with the oldest torch, whose own bounds are the
# narrowest, so that it goes with every torch.
LOCKED = echo "$(OLDEST)" | $(BIN)/uv pip compile -q pyproject.toml - --all-extras \
    --no-sources --no-annotate --no-header
LOCKABLE = grep -vE "^(torch|triton|nvidia-[a-z0-9-]*|cuda-[a-z]*)=="
# A check of addresses in JSON, which no notebook has; every start of Jupyter, nbclient
# and pytest would spend seconds on its grammar. Those who import it do without.
SLIM = @$(BIN)/pip uninstall -q -y rfc3987-syntax

ifneq ($(OFFLINE),)
export PIP_NO_INDEX := 1
export PIP_FIND_LINKS := $(CURDIR)/wheelhouse
endif

PLAIN = env -u D2LPAR_BACKEND -u D2LPAR_RANKS D2LPAR_PROGRESS=0
# Beside five others, threads of torch that wait for work must not spin: that took seconds
# of processor where the work takes hundredths.
units notebooks processes gpus: export OMP_WAIT_POLICY = passive

.PHONY: run lab test ready quick lint units coverage notebooks processes newest oldest lock bench execute sync exercises setup
.PHONY: thorough all-processes soak gpus wheelhouse site slides browse colab portable
.DEFAULT_GOAL := run

run: setup
	@$(BIN)/python -m d2lpar run $(if $(FURTHER),--further) $(CHAPTERS)

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

# The parts of `make thorough` that are tests with the mark `night`, and their files.
MARKED = night
ANSWERS = tests/test_answers.py tests/test_assign.py tests/test_exercises.py tests/test_grading.py
GPUS = tests/test_pretended_gpus.py
SITE_TESTS = tests/test_site_built.py
PACKAGES = tests/test_packaging.py tests/test_first_cell.py tests/test_get_torch.py
WORLDS = $(filter-out $(ANSWERS) $(GPUS) $(SITE_TESTS) $(PACKAGES),$(wildcard tests/test_*.py))
part-answers: FILES = $(ANSWERS)
part-answers: MARKED = night or not night  # those of the day are judged in all cases, too
part-gpus: FILES = $(GPUS)
part-site: FILES = $(SITE_TESTS)
part-packages: FILES = $(PACKAGES)
part-worlds: FILES = $(WORLDS)
part-answers part-gpus part-site part-packages part-worlds:
	@$(PLAIN) D2LPAR_ANSWERS=whole $(PYTEST) -m "$(strip $(MARKED))" -n $(WORKERS) --dist worksteal $(FILES)
part-processes: all-processes
part-soak: soak
part-portable: portable
part-newest: newest
part-oldest: oldest
PARTS = answers gpus site packages worlds processes soak portable newest oldest
PART ?= $(PARTS)

# A part that has passed with these very files is not run again.
STATE = $$(git rev-parse 'HEAD^{tree}')-$$(git diff HEAD | git hash-object --stdin)
thorough: ready
	@mkdir -p build/thorough; failed=; \
	for part in $(PART); do \
	    log=build/thorough/$$part.txt; passed=build/thorough/$$part-$(STATE); start=$$(date +%s); \
	    if test -f $$passed; then echo "$$part: passed before"; continue; fi; \
	    $(MAKE) --no-print-directory part-$$part > $$log 2>&1 && touch $$passed || \
	        { failed="$$failed $$part"; cat $$log; }; \
	    echo "$$part: $$(( ($$(date +%s) - start + 30) / 60 )) min," \
	        $$(grep -hoE "[0-9]+ (passed|failed).* in [0-9.]+s" $$log); \
	done; \
	test -z "$$failed" || { echo "Red:$$failed"; exit 1; }

quick: setup lint
	@echo "== quick tests"
	@$(PLAIN) $(PYTEST) -n 2 --dist worksteal $(QUICK)
	@$(PLAIN) $(PYTEST) -n 0 --nbval $(NBVAL) chapters/00*.ipynb

lint: setup
	@echo "== lint and types"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m mypy

# Among them are the known answers: to judge them takes processors, most others wait.
units:
	@echo "== unit tests, and answers to the exercises, judged"
	@$(PLAIN) $(PYTEST) -n $(WORKERS) --dist worksteal --durations=20 $(LEFT_OUT) tests

# Kills at random for minutes; a short form is among the unit tests.
soak: setup
	@$(PLAIN) $(BIN)/python tests/soak.py $(KILLS)

# Tensors of the host that count as a GPU's, and raise where CUDA would; half an hour.
# A short form is among the unit tests.
gpus: export D2LPAR_PRETEND = 4
gpus: export PYTHONPATH := $(CURDIR)/tests/pretend/site-packages
gpus: export MPLBACKEND = Agg
gpus: setup
	@$(PLAIN) $(BIN)/python tests/pretend/whole.py $(NOTEBOOKS)

# What is compared was printed where there is no GPU.
notebooks: export CUDA_VISIBLE_DEVICES =
notebooks:
	@echo "== chapters and solutions, outputs compared"
	@$(PLAIN) $(PYTEST) -n $(WORKERS) --dist loadscope --nbval $(NBVAL) $(KERNELS) $(NOTEBOOKS)

# At night all but 01 to 03, which start no ranks, and 16, which names its worlds.
all-processes: RANKED = $(filter-out $(foreach n,01 02 03 16,chapters/$(n)% chapters/further/$(n)%), \
    $(wildcard chapters/*.ipynb chapters/further/*.ipynb))
all-processes: processes

processes:
	@echo "== chapters on real processes, outputs not compared"
	@D2LPAR_BACKEND=gloo D2LPAR_PROGRESS=0 $(PYTEST) -n $(WORKERS) --dist loadscope --nbval-lax $(NBVAL) \
	    $(KERNELS) $(RANKED)

# Which lines of the library the unit tests run in this process; what ranks run that are
# processes of their own is not seen.
coverage: ready
	@$(PIP) -q "pytest-cov>=5.0"
	@$(PLAIN) $(PYTEST) -n $(WORKERS) --dist worksteal --cov=d2lpar \
	    --cov-report=term tests

# No output shows on which processor it was made: notebooks, compared, and the unit tests
# with PyTorch's plain kernels on one thread and with those for AVX2 on two.
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
	@rm -f $(VENV)/newest/installed
	@$(MAKE) --no-print-directory test VENV=$(VENV)/newest CONSTRAINTS= \
	    UPGRADE="--upgrade --upgrade-strategy eager"

oldest: setup
	@$(PIP) -q uv
	@test -x $(VENV)/oldest/bin/python || $(PYTHON) -m venv $(VENV)/oldest
	@$(LOCKED) --resolution lowest-direct > $(VENV)/locked.txt
	@$(LOCKABLE) $(VENV)/locked.txt > $(VENV)/oldest/constraints.txt
	@$(MAKE) --no-print-directory test VENV=$(VENV)/oldest TORCH="$(OLDEST)" \
	    CONSTRAINTS=$(VENV)/oldest/constraints.txt

lock: setup
	@$(PIP) -q uv
	@$(LOCKED) --universal --python-version 3.11 > $(VENV)/locked.txt
	@{ echo "# Tested versions, for Python 3.11 to 3.13; written by: make lock"; \
	    $(LOCKABLE) $(VENV)/locked.txt; } > constraints.txt

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
	@$(COLAB)/bin/pip install -q nbval nbclient pytest
	@env -u PYTHONPATH $(PLAIN) $(COLAB)/bin/python -m pytest -q --nbval-lax $(NBVAL) \
	    $(COLAB)/chapters/*.ipynb

setup: $(STAMP)

# A torch that is there is used and kept: first the one in $(VENV), then the one that
# $(PYTHON) has (a path file lets $(VENV) see it). Where there is none, $(TORCH), and
# without an NVIDIA driver its build for the CPU if there is one.
$(STAMP): pyproject.toml $(wildcard $(CONSTRAINTS))
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c "$(HAS)" torch || $(PYTHON) -c "$(WHERE_TORCH)" \
	    > "$$($(BIN)/python -c '$(PURELIB)')/torch_of_python.pth"
	@$(BIN)/python -c "$(HAS)" torch || $(BIN)/python authoring/get_torch.py "$(TORCH)"
	@$(BIN)/python -c "$(KEEP_TORCH)" > $(VENV)/keep.txt
	$(INSTALL) $(UPGRADE) -e ".[$(EXTRAS)]"
	$(SLIM)
	@$(PIP) -q --no-deps d2l==1.0.3 || \
	    echo "Warning: d2l 1.0.3 was not installed. The course runs without it."
	@touch $@

# nbgrader puts a menu of its own into JupyterLab, which only instructors want.
$(GRADER): $(STAMP)
	@$(BIN)/python -c "$(HAS)" nbgrader || $(INSTALL) -e ".[instructor]"
	$(SLIM)
	@touch $@

$(SITE): $(STAMP)
	@$(BIN)/python -c "$(HAS)" furo || $(INSTALL) -e ".[site]"
	$(SLIM)
	@touch $@

HAS = import importlib.util as u, sys; raise SystemExit(not u.find_spec(sys.argv[1]))
WHERE_TORCH = import importlib.util as u, os; s = u.find_spec('torch'); \
    print(os.path.dirname(os.path.dirname(s.origin)) if s else '')
KEEP_TORCH = from importlib.metadata import version; print('torch==' + version('torch'))
PURELIB = import sysconfig; print(sysconfig.get_path("purelib"))
