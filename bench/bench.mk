# The benchmarks that `make bench` runs, and the libraries that they are compared with. The peers
# live in an environment of their own, because their wheels do not get along with others.
#
#   make -f bench/bench.mk peers   sets the peers up (network; about 400 MB)
#   make -f bench/bench.mk run     runs the suites and the comparison
.PHONY: run peers
.DEFAULT_GOAL := run

PYTHON ?= python3
PEERS := build/peers-venv
UCX := $(PEERS)/ucx
RELEASE := build/release
LAYERS := cli connector store engine transport memory wire metrics config base fmt
ARCHIVES := $(wildcard $(LAYERS:%=$(RELEASE)/libstagelink_%.a))
# What the archives of a release build need: its files are compiled together, so that all of one may be linked.
LIBRARIES := -lyaml -lsodium -lxxhash

run: peers
	@mkdir -p build/bench
	@$(RELEASE)/stagelink bench suite engine --json > build/bench/engine_suite.json
	@$(RELEASE)/stagelink bench suite network --json > build/bench/network_suite.json
	@$(RELEASE)/stagelink bench suite moriio --json > build/bench/moriio_suite.json
	@$(RELEASE)/stagelink bench suite store --json > build/bench/store_suite.json
	@$(PYTHON) bench/compare.py --suite build/bench/engine_suite.json \
	  --suite build/bench/network_suite.json --json build/bench/peers.json

# What cannot be set up is left out of the comparison.
peers: $(PEERS)/ready $(PEERS)/ucx_peer $(PEERS)/ucx113_peer

$(PEERS)/ready: bench/peers/requirements.txt
	@echo "setting up the peers in $(PEERS)"
	@$(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/pip install --quiet --disable-pip-version-check --no-deps -r $< \
	  || echo "some peers could not be installed; they will be left out"
	@ldconfig -p | grep -q libibverbs.so.1 \
	  || apt-get install -y -qq --no-install-recommends libibverbs1 >/dev/null 2>&1 \
	  || echo "Mooncake needs the Debian package libibverbs1; it will be left out"
	@ln -sfn "$$($(PEERS)/bin/python -c 'import libucx, os; print(os.path.dirname(libucx.__file__))')" \
	  $(UCX) 2>/dev/null || true
	@touch $@

$(PEERS)/ucx_peer: bench/peers/ucx_peer.cc $(PEERS)/ready $(ARCHIVES)
	@$(CXX) -std=c++20 -O2 -Iinclude -Isrc -isystem $(UCX)/include -o $@ $< \
	  -Wl,--start-group $(ARCHIVES) -Wl,--end-group \
	  -L$(UCX)/lib -lucp -lucs -Wl,-rpath,$(abspath $(UCX)/lib) $(LIBRARIES) -pthread \
	  || echo "the UCX peer could not be built; it will be left out"

# Debian's UCX, an older release with another choice of protocols.
$(PEERS)/ucx113_peer: bench/peers/ucx_peer.cc $(PEERS)/ready $(ARCHIVES)
	@test -e /usr/include/ucp/api/ucp.h \
	  || apt-get install -y -qq --no-install-recommends libucx-dev >/dev/null 2>&1 || true
	@$(CXX) -std=c++20 -O2 -Iinclude -Isrc -o $@ $< \
	  -Wl,--start-group $(ARCHIVES) -Wl,--end-group -lucp -lucs $(LIBRARIES) -pthread \
	  || echo "the peer with Debian's UCX (libucx-dev) could not be built; it will be left out"
