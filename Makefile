# Build, demo and checks of fhd. `make help` lists the targets.
#
# A variant lives in a folder of its own:   make BUILD=build-clang CC=clang WERROR=-Werror
#                                           make BUILD=build-asan SAN=address,undefined OPT=-O1
# Without root, packages unpacked elsewhere: make SYSROOT=DIR
SHELL := /bin/bash
BUILD ?= build
SYSROOT ?=
ifeq ($(origin CC),default)
  CC := gcc
endif
OPT ?= -O3
SAN ?=
WERROR ?=
PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
DESTDIR ?=
VENV ?= .venv
VERSION := 0.1.0

# ---------------------------------------------------------------- dependencies
ifneq ($(SYSROOT),)
  multiarch := $(shell $(CC) -print-multiarch)
  sys := $(abspath $(SYSROOT))
  DEP_CFLAGS := -isystem $(sys)/usr/include -isystem $(sys)/usr/include/$(multiarch)
  DEP_LDFLAGS := -L$(sys)/usr/lib/$(multiarch) -L$(sys)/lib/$(multiarch) -Wl,-rpath,$(sys)/usr/lib/$(multiarch) -Wl,-rpath,$(sys)/lib/$(multiarch) -Wl,-rpath-link,$(sys)/usr/lib/$(multiarch)
  PROTOC_C := LD_LIBRARY_PATH=$(sys)/usr/lib/$(multiarch) PATH=$(sys)/usr/bin:$(PATH) protoc-c
  PROTOC := LD_LIBRARY_PATH=$(sys)/usr/lib/$(multiarch) PATH=$(sys)/usr/bin:$(PATH) protoc
else
  PROTOC_C := protoc-c
  PROTOC := protoc
endif
# OpenBLAS where it can be linked, else the built-in products alone: make BLAS_LIBS= asks for that.
BLAS_LIBS ?= $(shell echo 'int main(void){return 0;}' | $(CC) -x c - -o /dev/null $(DEP_LDFLAGS) -lopenblas 2>/dev/null && echo -lopenblas)
BLAS_LIBS := $(BLAS_LIBS)
GPU_LIBS := $(BLAS_LIBS) -lcrypto -lm -lpthread -ldl
PROTO_LIBS := -lprotobuf-c -lfyaml -lm
CLIENT_LIBS := -lnng $(PROTO_LIBS) -lzstd -lz -lpthread
# fhctl carries its libraries inside where their archives are here: of the 2 ms that it takes to start, the loader needs more than half
# for fourteen of them. make FHCTL_STATIC= links it as everything else.
fhctl_archives := -Wl,-Bstatic -lnng -lmbedtls -lmbedx509 -lmbedcrypto -lprotobuf-c -lfyaml -lzstd -lz -lcrypto -Wl,-Bdynamic
FHCTL_STATIC ?= $(shell echo 'extern char nng_dial, fy_document_create, protobuf_c_message_pack, ZSTD_decompressStream, inflate, SHA256_Init; \
  char *all[] = {&nng_dial, &fy_document_create, &protobuf_c_message_pack, &ZSTD_decompressStream, &inflate, &SHA256_Init}; \
  int main(void) { return !all[0]; }' | $(CC) -x c - -o /dev/null $(DEP_LDFLAGS) $(fhctl_archives) -lm -lpthread -ldl 2>/dev/null && echo 1)
FHCTL_STATIC := $(FHCTL_STATIC)
# Parquet: make ARROW=DIR, DIR having include/arrow and libarrow.so*, libparquet.so* (the folder of an installed pyarrow does).
ARROW ?=
ifneq ($(ARROW),)
  arrow_dir := $(abspath $(ARROW))
  CLIENT_LIBS += $(firstword $(wildcard $(arrow_dir)/libparquet.so*)) $(firstword $(wildcard $(arrow_dir)/libarrow.so*)) \
    -Wl,-rpath,$(arrow_dir) -lstdc++
  CXX_FLAGS := -std=c++20 $(OPT) -g -Wall -Wextra -Wno-unused-parameter $(WERROR) -fPIC -fvisibility=hidden -I. -isystem $(arrow_dir)/include
endif
DAEMON_LIBS := -luv -lnng $(PROTO_LIBS) -lsqlite3 -lsystemd

CFLAGS ?= -g
san_flags := $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all)
ALL_CFLAGS := -std=gnu11 $(OPT) $(CFLAGS) -Wall -Wextra -Wno-unused-parameter -Wvla $(WERROR) -fno-omit-frame-pointer \
  -ffp-contract=off -fvisibility=hidden -fPIC -pthread -D_GNU_SOURCE -I. -I$(BUILD) $(DEP_CFLAGS) $(if $(BLAS_LIBS),,-DFH_NO_BLAS) $(if $(ARROW),-DFH_ARROW) $(san_flags)
ALL_LDFLAGS := $(LDFLAGS) -Wl,--as-needed $(DEP_LDFLAGS) -pthread $(san_flags)

# ---------------------------------------------------------------- objects
gpu_src := $(wildcard gpu/*.c gpu/dqn/*.c gpu/host/*.c) proto/status.c
proto_src := $(filter-out proto/status.c,$(wildcard proto/*.c))
data_src := $(wildcard client/import/*.c)
daemon_src := $(wildcard daemon/*.c)
client_src := $(wildcard client/*.c) $(data_src)
obj = $(patsubst %.c,$(BUILD)/%.o,$(1))

.PHONY: all host
all: host cuda
host: $(BUILD)/fhd $(BUILD)/fhctl

$(BUILD)/proto/fh.pb-c.c: proto/fh.proto
	@mkdir -p $(@D)
	$(PROTOC_C) --c_out=$(BUILD)/proto -I proto $<
$(BUILD)/proto/fh.pb-c.h: $(BUILD)/proto/fh.pb-c.c ;
$(BUILD)/proto/fh.pb-c.o: $(BUILD)/proto/fh.pb-c.c
	$(CC) $(ALL_CFLAGS) -c $< -o $@

$(BUILD)/%.o: %.c | $(BUILD)/proto/fh.pb-c.h
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/libfhgpu.a: $(call obj,$(gpu_src))
	rm -f $@; ar rcs $@ $^
$(BUILD)/libfhproto.a: $(call obj,$(proto_src)) $(BUILD)/proto/fh.pb-c.o
	rm -f $@; ar rcs $@ $^
$(BUILD)/client/import/arrow_shim.o: client/import/arrow_shim.cc client/import/arrow_shim.h
	@mkdir -p $(@D)
	$(CXX) $(CXX_FLAGS) $(san_flags) -c $< -o $@
$(BUILD)/libfhclient.a: $(call obj,$(filter-out client/fhctl.c,$(client_src))) $(if $(ARROW),$(BUILD)/client/import/arrow_shim.o)
	rm -f $@; ar rcs $@ $^
$(BUILD)/libfhd.a: $(call obj,$(filter-out daemon/main.c,$(daemon_src)))
	rm -f $@; ar rcs $@ $^

$(BUILD)/fhd: $(BUILD)/daemon/main.o $(BUILD)/libfhd.a $(BUILD)/libfhproto.a $(BUILD)/libfhgpu.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(BUILD)/libfhgpu.a $(DAEMON_LIBS) $(GPU_LIBS)
$(BUILD)/fhctl: $(BUILD)/client/fhctl.o $(BUILD)/libfhclient.a $(BUILD)/libfhproto.a $(BUILD)/libfhgpu.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(BUILD)/libfhgpu.a $(if $(FHCTL_STATIC),$(fhctl_archives)) $(CLIENT_LIBS) $(GPU_LIBS)

# Nobody reads errno or floating-point exceptions there, and without them the loops become vector code; no result changes.
$(BUILD)/gpu/features%.o: ALL_CFLAGS += -fno-math-errno -fno-trapping-math

# The daemon with its crash points compiled in (FHD_CRASH_AT=LABEL ends it there at once): for tests only. Files without one are
# the same objects.
crash_src := $(shell grep -l FHD_CRASH_POINT daemon/*.c)
$(BUILD)/crash/%.o: %.c | $(BUILD)/proto/fh.pb-c.h
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -DFH_CRASH_POINTS -MMD -MP -c $< -o $@
$(BUILD)/fhd-crash: $(patsubst %.c,$(BUILD)/crash/%.o,$(crash_src)) $(BUILD)/daemon/main.o $(BUILD)/libfhd.a $(BUILD)/libfhproto.a $(BUILD)/libfhgpu.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(BUILD)/libfhgpu.a $(DAEMON_LIBS) $(GPU_LIBS)

# ---------------------------------------------------------------- CUDA backend: a shared object, loaded when a device is there
# Files that include env.h or sumtree.h are compiled without contraction: fills, exits and sampled leaves must be the
# host's, bit for bit.
NVCC ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
SM ?= 80 86 89 90
cuda_src := $(wildcard gpu/cuda/*.cu)
# For 9.0 the code that no other device runs (wgmma.cuh); FH_SM90A says that it is there.
sm_code := $(patsubst 90,90a,$(SM))
NVCC_FLAGS := -std=c++17 -O3 -lineinfo -Xcompiler -fPIC,-fvisibility=hidden,-Wall -I. $(if $(filter 90,$(SM)),-DFH_SM90A) \
  $(foreach s,$(sm_code),-gencode arch=compute_$(s),code=sm_$(s)) -gencode arch=compute_$(lastword $(SM)),code=compute_$(lastword $(SM))
CUDA_LIBS ?=
.PHONY: cuda
cuda: $(if $(and $(NVCC),$(cuda_src)),$(BUILD)/fhd-cuda.so)
	@:
$(BUILD)/gpu/cuda/%.o: gpu/cuda/%.cu $(wildcard gpu/cuda/*.h gpu/cuda/*.cuh gpu/*.h gpu/dqn/*.h)
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) --fmad=$(if $(shell grep -lE '"gpu/(env|sumtree).h"' $<),false,true) -c $< -o $@
$(BUILD)/fhd-cuda.so: $(patsubst %.cu,$(BUILD)/%.o,$(cuda_src)) $(BUILD)/proto/status.o
	$(NVCC) -shared $(NVCC_FLAGS) -o $@ $^ $(CUDA_LIBS)

# The same kernels on a CPU, by the C++ compiler and the headers of tests/gpu/emu instead of the toolkit: for tests alone. It
# lies in a folder of its own, so only FHD_LIBDIR finds it. Contraction as on the device.
emu_cxx := $(filter ccache,$(CC)) $(if $(findstring clang,$(CC)),clang++,$(CXX))
# ThreadSanitizer knows nothing of fibers, and nothing that it watches is in there.
emu_san := $(if $(findstring thread,$(SAN)),,$(san_flags) $(if $(findstring address,$(SAN)),$(if $(findstring clang,$(emu_cxx)),,-fsanitize-sections=fh_shared)))
emu_cpu := $(if $(shell grep -lw avx2 /proc/cpuinfo 2>/dev/null),-mavx2 -mfma)
EMU_FLAGS := -std=c++17 $(or $(EMU_OPT),-O2) $(CFLAGS) -Wall -Wextra -Wno-unused-parameter -Wno-unknown-pragmas -Wno-pass-failed -Wno-psabi $(WERROR) -fno-omit-frame-pointer \
  -fno-strict-aliasing -Wno-strict-aliasing -fdata-sections -fvisibility=hidden -fPIC -pthread $(emu_cpu) -I. -Itests/gpu/emu/include $(emu_san)
.PHONY: gpu-emu
gpu-emu: $(BUILD)/emu/fhd-cuda.so $(BUILD)/emu/faults
$(BUILD)/emu/%.cu.o: gpu/cuda/%.cu
	@mkdir -p $(@D)
	$(emu_cxx) $(EMU_FLAGS) -ffp-contract=$(if $(shell grep -lE '"gpu/(env|sumtree).h"' $<),off,fast) -MMD -MP -x c++ -c $< -o $@
$(BUILD)/emu/%.cc.o: tests/gpu/emu/%.cc
	@mkdir -p $(@D)
	$(emu_cxx) $(EMU_FLAGS) -ffp-contract=off -MMD -MP -c $< -o $@
emu_obj := $(patsubst gpu/cuda/%.cu,$(BUILD)/emu/%.cu.o,$(cuda_src)) $(patsubst tests/gpu/emu/%.cc,$(BUILD)/emu/%.cc.o,$(wildcard tests/gpu/emu/*.cc))
$(BUILD)/emu/fhd-cuda.so: $(emu_obj) $(BUILD)/proto/status.o tests/gpu/emu/shared.ld
	$(emu_cxx) -shared $(emu_san) -pthread -o $@ $(filter %.o,$^) -Wl,-T,tests/gpu/emu/shared.ld -ldl
$(BUILD)/emu/faults: tests/gpu/emu/faults.cpp tests/gpu/emu/faults_cluster.h $(filter %.cc.o,$(emu_obj)) tests/gpu/emu/shared.ld
	$(emu_cxx) $(EMU_FLAGS) -o $@ $< $(filter %.o,$^) -Wl,-T,tests/gpu/emu/shared.ld -ldl

# ---------------------------------------------------------------- C tests: one program a file
# tests/unit/gpu_*.c and tests/train/*.c link the gpu library alone; proto_*.c the proto library too; daemon_*.c and
# client_*.c theirs as well.
unit_src := $(wildcard tests/unit/*.c)
train_src := $(wildcard tests/train/*.c)
gpu_test_src := $(wildcard tests/gpu/*.c)
unit_bin := $(patsubst %.c,$(BUILD)/%,$(unit_src))
train_bin := $(patsubst %.c,$(BUILD)/%,$(train_src))
$(BUILD)/tests/unit/gpu_%: $(BUILD)/tests/unit/gpu_%.o $(BUILD)/libfhgpu.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(GPU_LIBS)
$(BUILD)/tests/train/%: $(BUILD)/tests/train/%.o $(BUILD)/libfhgpu.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(GPU_LIBS)
$(BUILD)/tests/gpu/%: $(BUILD)/tests/gpu/%.o $(BUILD)/libfhgpu.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(GPU_LIBS)
$(BUILD)/tests/bench/%: $(BUILD)/tests/bench/%.o $(BUILD)/libfhgpu.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(GPU_LIBS)
$(BUILD)/tests/unit/proto_%: $(BUILD)/tests/unit/proto_%.o $(BUILD)/libfhproto.a $(BUILD)/libfhgpu.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(PROTO_LIBS) $(GPU_LIBS)
$(BUILD)/tests/unit/daemon_%: $(BUILD)/tests/unit/daemon_%.o $(BUILD)/libfhd.a $(BUILD)/libfhproto.a $(BUILD)/libfhgpu.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(DAEMON_LIBS) $(GPU_LIBS)
$(BUILD)/tests/unit/client_%: $(BUILD)/tests/unit/client_%.o $(BUILD)/libfhclient.a $(BUILD)/libfhproto.a $(BUILD)/libfhgpu.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(CLIENT_LIBS) $(GPU_LIBS)
.SECONDARY:

.PHONY: unit-bins train-bins gpu-bins e2e-bins
unit-bins: $(unit_bin)
train-bins: $(train_bin)
gpu-bins: $(patsubst %.c,$(BUILD)/%,$(gpu_test_src))
e2e-bins: $(BUILD)/fhd $(BUILD)/fhctl $(BUILD)/fhd-crash $(BUILD)/py/fh_pb2.py $(BUILD)/tests/data/bars $(BUILD)/tests/data/features
$(BUILD)/tests/data/%: $(BUILD)/tests/data/%.o $(BUILD)/libfhclient.a $(BUILD)/libfhproto.a $(BUILD)/libfhgpu.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(CLIENT_LIBS) $(GPU_LIBS)
$(BUILD)/tests/one_thread.so: tests/sanitizers/one_thread.c
	@mkdir -p $(@D)
	$(CC) -Wall -Wextra $(WERROR) -shared -fPIC -o $@ $<
$(BUILD)/py/fh_pb2.py: proto/fh.proto
	@mkdir -p $(@D)
	$(PROTOC) --python_out=$(BUILD)/py -I proto $<

# ---------------------------------------------------------------- the two commands, and the others
.PHONY: demo check check-asan asan check-tsan tsan check-emu lint check-gpu bench gpu-kit fuzz fmt test-deps
demo:
	@tests/deps.sh run
	@tests/demo.sh
test-deps:
	@tests/deps.sh test
check: test-deps
	@tests/run.py
check-asan asan: test-deps
	@tests/run.py asan
check-tsan tsan: test-deps
	@tests/run.py tsan
check-emu: test-deps
	@tests/run.py emu
lint: test-deps
	@tests/run.py lint
# PARTS="golden wide" does these alone; NOBUILD=1 takes $(BUILD) as it is, a folder of gpu-kit, say. What they do: head of the programs.
NOBUILD ?=
PARTS ?=
export NOBUILD
check-gpu:
	@tests/gpu/check.py $(BUILD) $(PARTS)
bench: $(if $(NOBUILD),,all $(addprefix $(BUILD)/tests/bench/,gpu_step epoch host_step))
	@tests/bench/bench.py $(BUILD) $(PARTS)
# Everything that the two need on a machine with a card where nothing is installed, in one folder: make gpu-kit KIT=DIR SM=90
gpu-kit:
	@tests/gpu/kit.sh $(or $(KIT),$(error KIT names no folder))
FUZZ_SECONDS ?= 60
fuzz: test-deps
	@FUZZ_SECONDS=$(FUZZ_SECONDS) tests/fuzz/run.sh
fmt:
	clang-format -i --style=file:tests/lint/clang-format $(shell git ls-files '*.c' '*.h')

# ---------------------------------------------------------------- install
# The client library is one archive with what it needs of proto/ and gpu/ in it; pkg-config knows the rest.
$(BUILD)/install/libfhclient.a: $(BUILD)/libfhclient.a $(BUILD)/libfhproto.a $(BUILD)/libfhgpu.a
	@mkdir -p $(@D)
	printf 'create $@\naddlib $(BUILD)/libfhclient.a\naddlib $(BUILD)/libfhproto.a\naddlib $(BUILD)/libfhgpu.a\nsave\nend\n' | ar -M
.PHONY: install uninstall
install: host $(BUILD)/install/libfhclient.a
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,bin include/fh lib/pkgconfig lib/systemd/system lib/sysusers.d lib/tmpfiles.d share/fh share/doc/fhd) $(DESTDIR)$(SYSCONFDIR)/fhd
	install -m 755 $(BUILD)/fhd $(BUILD)/fhctl $(DESTDIR)$(PREFIX)/bin/
	$(if $(wildcard $(BUILD)/fhd-cuda.so),install -d $(DESTDIR)$(PREFIX)/lib/fhd && install -m 755 $(BUILD)/fhd-cuda.so $(DESTDIR)$(PREFIX)/lib/fhd/)
	install -m 644 $(BUILD)/install/libfhclient.a $(DESTDIR)$(PREFIX)/lib/
	install -d $(DESTDIR)$(PREFIX)/include/fh/client $(DESTDIR)$(PREFIX)/include/fh/proto
	install -m 644 client/fhclient.h $(DESTDIR)$(PREFIX)/include/fh/client/
	install -m 644 proto/status.h proto/wire.h $(BUILD)/proto/fh.pb-c.h $(DESTDIR)$(PREFIX)/include/fh/proto/
	install -m 644 proto/fh.proto $(DESTDIR)$(PREFIX)/share/fh/
	install -m 644 README.md gpu/INSTRUMENTS.md gpu/MATH.md $(DESTDIR)$(PREFIX)/share/doc/fhd/
	sed 's|@PREFIX@|$(PREFIX)|g;s|@VERSION@|$(VERSION)|g;s|@LIBS@|$(CLIENT_LIBS) $(GPU_LIBS)|g' systemd/fhclient.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/fhclient.pc
	sed 's|/usr/local|$(PREFIX)|g' systemd/fhd.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/fhd.service
	install -m 644 systemd/sysusers.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d/fhd.conf
	install -m 644 systemd/tmpfiles.conf $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/fhd.conf
	[ -e $(DESTDIR)$(SYSCONFDIR)/fhd/fhd.yaml ] || install -m 644 systemd/fhd.yaml $(DESTDIR)$(SYSCONFDIR)/fhd/fhd.yaml
uninstall:
	rm -rf $(addprefix $(DESTDIR)$(PREFIX)/,bin/fhd bin/fhctl lib/fhd lib/libfhclient.a include/fh share/fh share/doc/fhd lib/pkgconfig/fhclient.pc lib/systemd/system/fhd.service lib/sysusers.d/fhd.conf lib/tmpfiles.d/fhd.conf)

.PHONY: help
help:
	@printf '%s\n' \
	'make                build/fhd and build/fhctl (and build/fhd-cuda.so when nvcc is there)' \
	'make demo           installs what is missing, builds, trains on real bars in about two minutes, writes equity.svg' \
	'make check          installs what is missing, builds, runs every test that needs no GPU' \
	'make gpu-emu        the CUDA kernels compiled for a CPU: build/emu/fhd-cuda.so, see gpu/cuda/README.md' \
	'make check-gpu      proves the CUDA backend on a card (PARTS="golden runs" for some, NOBUILD=1)' \
	'make check-asan     unit and end-to-end suites under AddressSanitizer and UndefinedBehaviorSanitizer' \
	'make check-tsan     the same under ThreadSanitizer' \
	'make check-emu      the CUDA stages on the emulator, and the daemon on them, under AddressSanitizer (5 minutes)' \
	'make lint           who includes whom, cppcheck and clang-tidy' \
	'make fuzz           libFuzzer on everything that reads foreign bytes (FUZZ_SECONDS=60 each)' \
	'make bench          speed on a card and of the host beside PyTorch; writes tests/bench/RESULTS.md on a card (PARTS=, NOBUILD=1)' \
	'make gpu-kit        KIT=folder: programs and libraries for both on a machine where nothing is installed' \
	'make install        DESTDIR, PREFIX=/usr/local, SYSCONFDIR=/etc; make uninstall takes it away' \
	'make fmt            clang-format' \
	'make clean          removes $(BUILD)' \
	'variables           BUILD=folder CC=gcc|clang OPT=-O3 SAN=address,undefined WERROR=-Werror SM="80 90" SYSROOT=folder ARROW=folder (Parquet)'

.PHONY: clean
clean:
	rm -rf $(BUILD)

all_obj := $(call obj,$(gpu_src) $(proto_src) $(daemon_src) $(client_src) $(unit_src) $(train_src) $(gpu_test_src) $(wildcard tests/data/*.c tests/bench/*.c)) $(patsubst %.c,$(BUILD)/crash/%.o,$(crash_src))
-include $(wildcard $(all_obj:.o=.d) $(emu_obj:.o=.d))
