cd /work/scratch/bg; export PYTHONPATH=$PWD; P=/work/main/.venv/bin/python
$P -m tests.benchmarks.published ../../shared/published_gpu.csv > ../pub.txt 2>&1
$P -m tests.benchmarks.xla_stages --only "LSTM: 1 stage" > ../xla_lstm.txt 2>&1
$P -m tests.benchmarks.xla_stages --only "Transformer: 2 stages" > ../xla_tr.txt 2>&1
$P -m pytest -n 1 -q -p no:cacheprovider -m 'grid or slow or (not grid and not slow)' tests/verification/test_gpu_lint.py -k compiled > ../lint.txt 2>&1
$P -m tests.benchmarks.fidelity > ../fidelity.txt 2>&1
