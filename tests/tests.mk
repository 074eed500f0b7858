# Included by the Makefile: everything under tests/.

.PHONY: check-unit
check-unit: $(UNIT_BINS)
	@set -e; for t in $(UNIT_BINS); do LQ_BUILD=$(BUILD) $$t; done
