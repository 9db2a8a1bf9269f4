PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all test-long mutate metamorphic fuzz tune-matrix flipped-bits resume-matrix differential test-gpu verify-matrix bisect-matrix trace-matrix verify-programs strangers shim-wheel matrix old-checkpoints frameworks frameworks-newest parity lint docs site dist picture bench bench-gpu bench-report bench-verify clean help

help:
	@echo "make demo        migrate and train a small project before and after, and compare the two bit for bit"
	@echo "make test        run the tests, of each matrix a sample"
	@echo "make test-all    run larger samples too, and what needs the frameworks: CI does this"
	@echo "make test-long   run what is left out of both, which takes hours"
	@echo "make mutate      change conditions of the code one by one, and list those that no test notices"
	@echo "make metamorphic  say which rules fall silent where an example is written another way"
	@echo "make fuzz MINUTES=10  throw generated and broken sources and checkpoints at the command"
	@echo "make flipped-bits  turn 1,000 single bits of tensors in checkpoints over, and see that each is noticed"
	@echo "make resume-matrix  train programs that resume from every kind of FSDP1's checkpoints, and write docs/resume.md"
	@echo "make differential PROGRAMS=500  train generated programs before and after a rewrite, and compare bit for bit"
	@echo "make verify-matrix  seed defects into a migrated program, and see that verify finds each"
	@echo "make tune-matrix   train forty programs in six layouts each on two to four ranks, and compare with what tune predicts"
	@echo "make trace-matrix   trace programs under FSDP1, and see what the analysis missed or contradicts, and what traces change"
	@echo "make bisect-matrix  seed wrong edits into rewrites, and see that verify --bisect finds each"
	@echo "make verify-programs  verify the fixture projects and every program of the parity matrix"
	@echo "make strangers   train programs that know nothing of this project before and after a rewrite, and compare"
	@echo "make shim-wheel  build fsdp-compat, install it beside torch and numpy, and train from it as under FSDP1"
	@echo "make test-gpu    run the shim's tests on this machine's GPUs, with NCCL; exits 2 if there is none"
	@echo "make matrix      run the shim's tests on several versions of torch (VERSIONS=\"2.8\" selects)"
	@echo "make old-checkpoints  write checkpoints with torch 2.2 and 2.4, and read and convert them"
	@echo "make frameworks  compare configuration keys with the frameworks' own code, train under it, and read its checkpoints"
	@echo "make frameworks-newest  say what the newest releases of accelerate and transformers changed in those tables"
	@echo "make parity      run the whole differential matrix and write docs/parity.md"
	@echo "make lint        ruff and mypy --strict"
	@echo "make docs        regenerate the pages under docs/ that come from the rules"
	@echo "make site        build the documentation as a site in build/site, without the network; a broken link is an error"
	@echo "make dist        build wheels and sdists of both distributions into dist/, and check them"
	@echo "make picture     draw the README's picture from what verify prints now"
	@echo "make bench-verify  time a training step with and without the recorder of verify"
	@echo "make bench       time steps and checkpoints, count collectives and measure memory under FSDP1, FSDP2 and the shim"
	@echo "make bench-gpu   the same, layouts of tune included, on this machine's GPUs with NCCL, as JSON"
	@echo "make bench-report  time a browser that opens a report of 1,000 findings"

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python scripts/demo.py

test: $(STAMP)
	$(BIN)/python scripts/run_tests.py

test-all: $(STAMP)
	$(BIN)/python scripts/run_tests.py --all
	$(MAKE) frameworks

test-long: $(STAMP)
	$(BIN)/python -m pytest -m long

mutate: $(STAMP)
	$(BIN)/python scripts/mutate.py --mutants $(or $(MUTANTS),200)

metamorphic: $(STAMP)
	$(BIN)/python scripts/metamorphic.py

fuzz: $(STAMP)
	$(BIN)/python scripts/fuzz.py --minutes $(or $(MINUTES),10)

tune-matrix: $(STAMP)
	$(BIN)/python -m pytest -m "" tests/tune

flipped-bits: $(STAMP)
	$(BIN)/python scripts/flipped_bits.py

resume-matrix: $(STAMP)
	$(BIN)/python scripts/resume_matrix.py

differential: $(STAMP)
	$(BIN)/python scripts/differential.py --programs $(or $(PROGRAMS),500)

trace-matrix: $(STAMP)
	$(BIN)/python scripts/trace_matrix.py

bisect-matrix: $(STAMP)
	$(BIN)/python scripts/bisect_matrix.py

verify-matrix: $(STAMP)
	$(BIN)/python scripts/verify_matrix.py

verify-programs: $(STAMP)
	$(BIN)/python scripts/verify_programs.py

strangers: $(STAMP)
	$(BIN)/python scripts/strangers.py

shim-wheel: $(STAMP)
	$(BIN)/python scripts/shim_wheel.py

test-gpu: $(STAMP)
	FSDP_COMPAT_TEST_DEVICE=cuda $(BIN)/python -m pytest -m "" tests/shim

matrix: $(STAMP)
	$(BIN)/python scripts/matrix.py $(VERSIONS)

old-checkpoints: $(STAMP)
	$(BIN)/python scripts/old_checkpoints.py $(VERSIONS)

frameworks:
	test -x .frameworks/bin/python || $(PYTHON) -m venv .frameworks
	.frameworks/bin/python -m pip install --quiet --disable-pip-version-check torch -c constraints.txt
	.frameworks/bin/python -m pip install --quiet --disable-pip-version-check -e '.[frameworks]' pydantic omegaconf
	.frameworks/bin/python -m pip install --quiet --disable-pip-version-check --no-deps axolotl==0.19.0 mosaicml==0.32.1 verl==0.9.1 llamafactory==0.9.5 ms-swift==4.6.0
	# Some of these install folders of their repository that hide those of this one.
	rm -rf .frameworks/lib/python*/site-packages/tests .frameworks/lib/python*/site-packages/scripts
	.frameworks/bin/python -m pytest tests/configs/frameworks tests/checkpoints/frameworks
	rm -rf .frameworks/older
	.frameworks/bin/python -m pip install --quiet --disable-pip-version-check --target .frameworks/older transformers==5.9.0
	.frameworks/bin/python -m pip install --quiet --disable-pip-version-check --target .frameworks/older --no-deps accelerate==1.13.0 axolotl==0.17.0 mosaicml==0.31.0 verl==0.7.1 ms-swift==4.3.0
	rm -rf .frameworks/older/tests .frameworks/older/scripts
	PYTHONPATH=.frameworks/older .frameworks/bin/python -m pytest tests/configs/frameworks -k "real_accelerate or real_transformers or real_plugin or real_axolotl or real_composer or real_verl or real_refusals"

frameworks-newest:
	test -x .frameworks/bin/python || $(MAKE) frameworks
	rm -rf .frameworks/newest
	.frameworks/bin/python -m pip install --quiet --disable-pip-version-check --target .frameworks/newest transformers
	.frameworks/bin/python -m pip install --quiet --disable-pip-version-check --target .frameworks/newest --no-deps accelerate
	PYTHONPATH=.frameworks/newest .frameworks/bin/python -m pytest tests/configs/frameworks -k "table or argument or default"

parity: $(STAMP)
	$(BIN)/python scripts/parity.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/python scripts/docs.py

site: $(STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site

dist: $(STAMP)
	rm -rf dist
	$(BIN)/python scripts/distributions.py dist

picture: $(STAMP)
	$(BIN)/python scripts/picture.py

bench-verify: $(STAMP)
	$(BIN)/python benchmarks/verify_overhead.py --output benchmarks/verify_overhead.json

bench: $(STAMP)
	$(BIN)/python benchmarks/training_costs.py --output benchmarks/training_costs.json
	$(BIN)/python benchmarks/tuned.py --output benchmarks/tuned.json

bench-gpu: $(STAMP)
	$(BIN)/python benchmarks/tuned.py --device cuda --layers 8 --width 1024 --length 512 --vocabulary 8192 --output benchmarks/tuned_cuda.json
	$(BIN)/python benchmarks/tune_memory.py --device cuda --output benchmarks/tune_memory_cuda.json
	$(BIN)/python benchmarks/training_costs.py --device cuda --variants fp32,bf16,bf16-offload --rounds 12 --output benchmarks/training_costs_cuda.json

bench-report: $(STAMP)
	$(BIN)/python benchmarks/report_opening.py --output benchmarks/report_opening.json

clean:
	rm -rf $(VENV) .matrix .frameworks out build dist
