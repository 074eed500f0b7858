# Included by the Makefile: installation, the .deb, and the checks of all that is in deploy/.
#
# PREFIX, DESTDIR, and where a distribution wants something elsewhere:
LIBDIR ?= $(PREFIX)/lib
SYSCONFDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/etc,$(PREFIX)/etc)
UNITDIR ?= $(PREFIX)/lib/systemd/system
DOCDIR ?= $(PREFIX)/share/doc/larql-grid

D_BIN := $(DESTDIR)$(PREFIX)/bin
D_LIB := $(DESTDIR)$(LIBDIR)
D_INC := $(DESTDIR)$(PREFIX)/include
D_MAN := $(DESTDIR)$(PREFIX)/share/man/man1
D_DOC := $(DESTDIR)$(DOCDIR)
D_UNIT := $(DESTDIR)$(UNITDIR)
D_USERS := $(DESTDIR)$(PREFIX)/lib/sysusers.d
D_ETC := $(DESTDIR)$(SYSCONFDIR)/larql-grid

DOCS := README.md CHANGELOG.md LICENSE $(wildcard docs/*.md docs/*.json)
UNITS := larql-router.service larql-shard@.service
ENVS := $(notdir $(wildcard deploy/etc/*.env))
FFN_NAMES := $(notdir $(FFN_A) $(FFN_SO)) liblarql_ffn.so.0 liblarql_ffn.so
FILL := sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|; s|@BINDIR@|$(PREFIX)/bin|; s|@SYSCONFDIR@|$(SYSCONFDIR)|'

.PHONY: install install-grid install-lib uninstall
install: install-grid install-lib

install-grid: all
	install -d $(D_BIN) $(D_MAN) $(D_DOC)/adr $(D_DOC)/examples $(D_UNIT) $(D_USERS) $(D_ETC)
	install $(BINS) deploy/larql-grid-up $(D_BIN)
	install -m 644 docs/man/*.1 $(D_MAN)
	install -m 644 $(DOCS) $(D_DOC)
	install -m 644 docs/adr/*.md $(D_DOC)/adr
	cp -R deploy/compose.yaml deploy/kubernetes deploy/grafana deploy/systemd/credentials.conf $(D_DOC)/examples
	chmod -R u=rwX,go=rX $(D_DOC)/examples
	for u in $(UNITS); do $(FILL) deploy/systemd/$$u.in > $(D_UNIT)/$$u && chmod 644 $(D_UNIT)/$$u || exit 1; done
	install -m 644 deploy/systemd/larql-grid.sysusers $(D_USERS)/larql-grid.conf
	# what an operator has changed stays
	for e in $(ENVS); do [ -e $(D_ETC)/$$e ] || install -m 644 deploy/etc/$$e $(D_ETC) || exit 1; done

install-lib: all
	install -d $(D_LIB)/pkgconfig $(D_INC)
	install -m 644 $(FFN_A) $(FFN_SO) $(D_LIB)
	ln -sf $(notdir $(FFN_SO)) $(D_LIB)/liblarql_ffn.so.0
	ln -sf liblarql_ffn.so.0 $(D_LIB)/liblarql_ffn.so
	install -m 644 client/larql_ffn.h $(D_INC)
	$(FILL) client/larql_ffn.pc.in > $(D_LIB)/pkgconfig/larql_ffn.pc && chmod 644 $(D_LIB)/pkgconfig/larql_ffn.pc

# Configuration that an operator has changed, keys and models stay.
uninstall:
	rm -f $(addprefix $(D_BIN)/,$(notdir $(BINS)) larql-grid-up)
	rm -f $(addprefix $(D_LIB)/,$(FFN_NAMES) pkgconfig/larql_ffn.pc) $(D_INC)/larql_ffn.h
	rm -f $(addprefix $(D_MAN)/,$(notdir $(wildcard docs/man/*.1)))
	rm -f $(addprefix $(D_UNIT)/,$(UNITS)) $(D_USERS)/larql-grid.conf
	rm -rf $(D_DOC)
	for e in $(ENVS); do ! cmp -s deploy/etc/$$e $(D_ETC)/$$e || rm -f $(D_ETC)/$$e; done
	-rmdir $(D_ETC) 2>/dev/null

# ---- the .deb: built with Debian's flags, in a build folder of its own ------------
.PHONY: deb deb-pack
deb:
	@deploy/packages.sh build deb
	+@CFLAGS= CPPFLAGS= LDFLAGS= $(SUB) BUILD=$(BUILD)/deb DEV= SAN= CFLAGS="$$(dpkg-buildflags --get CFLAGS)" \
		CPPFLAGS="$$(dpkg-buildflags --get CPPFLAGS)" LDFLAGS="$$(dpkg-buildflags --get LDFLAGS) -Wl,-z,now" \
		PREFIX=/usr LIBDIR=/usr/lib/$$(dpkg-architecture -q DEB_HOST_MULTIARCH) UNITDIR=/lib/systemd/system \
		DEB_OUT=$(BUILD) deb-pack

deb-pack: all
	@rm -rf $(BUILD)/stage && mkdir -p $(BUILD)/stage
	+@$(SUB) install-grid DESTDIR=$(BUILD)/stage/larql-grid >$(BUILD)/stage.log
	+@$(SUB) install-lib DESTDIR=$(BUILD)/stage/liblarql-ffn-dev >>$(BUILD)/stage.log
	@deploy/deb/pack.sh $(BUILD)/stage $(VERSION) $(DEB_OUT)

# ---- checks of what is in this folder, and of the packages that come out of it -----
# Those that need a tool or a right which is not there skip, and say why.
DEPLOY_CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/larql-grid
.PHONY: check-deploy
check-deploy: all
	@deploy/packages.sh test deploy
	+@$(SUB) deb
	+@$(TEST_ENV) LQ_DEPLOY_CACHE=$(DEPLOY_CACHE) LQ_TEST_TIMEOUT_X=$(LQ_TEST_TIMEOUT_X) \
		$(PYTHON) -m pytest -q -p no:cacheprovider -rs tests/deploy

# The container image, built on a base system made here: about a minute and a half.
.PHONY: check-container
check-container: all
	@deploy/packages.sh deploy container
	+@LQ_CONTAINER=1 $(TEST_ENV) LQ_DEPLOY_CACHE=$(DEPLOY_CACHE) LQ_TEST_TIMEOUT_X=$(LQ_TEST_TIMEOUT_X) \
		$(PYTHON) -m pytest -q -p no:cacheprovider -rs tests/deploy/test_container.py
