# Build, demo and checks of fhd. `make help` lists the targets.
# Variants live in their own folders: make BUILD=build-asan SAN=address,undefined
SHELL := /bin/bash
BUILD ?= build
SYSROOT ?=
CC ?= gcc
OPT ?= -O3
SAN ?=
WERROR ?=

# ---------------------------------------------------------------- dependencies
ifneq ($(SYSROOT),)
  multiarch := $(shell $(CC) -print-multiarch)
  sys := $(abspath $(SYSROOT))
  DEP_CFLAGS := -isystem $(sys)/usr/include -isystem $(sys)/usr/include/$(multiarch)
  DEP_LDFLAGS := -L$(sys)/usr/lib/$(multiarch) -L$(sys)/lib/$(multiarch) -Wl,-rpath,$(sys)/usr/lib/$(multiarch) -Wl,-rpath,$(sys)/lib/$(multiarch) -Wl,-rpath-link,$(sys)/usr/lib/$(multiarch)
  PROTOC_C := LD_LIBRARY_PATH=$(sys)/usr/lib/$(multiarch) PATH=$(sys)/usr/bin:$(PATH) protoc-c
else
  PROTOC_C := protoc-c
endif
BLAS_LIBS ?= -lopenblas
GPU_LIBS := $(BLAS_LIBS) -lm -lpthread -ldl
PROTO_LIBS := -lprotobuf-c -lfyaml -lm
CLIENT_LIBS := -lnng $(PROTO_LIBS) -lzstd -lpthread
DAEMON_LIBS := -luv -lnng $(PROTO_LIBS) -lsqlite3 -lsystemd

CFLAGS ?= -g
ALL_CFLAGS := -std=gnu11 $(OPT) $(CFLAGS) -Wall -Wextra -Wno-unused-parameter -Wvla $(WERROR) -fno-omit-frame-pointer \
  -ffp-contract=off -fvisibility=hidden -fPIC -pthread -D_GNU_SOURCE -I. -I$(BUILD) $(DEP_CFLAGS) $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all)
ALL_LDFLAGS := $(LDFLAGS) $(DEP_LDFLAGS) $(if $(SAN),-fsanitize=$(SAN))

# ---------------------------------------------------------------- objects
gpu_src := $(wildcard gpu/*.c gpu/dqn/*.c gpu/host/*.c) proto/status.c
proto_src := $(filter-out proto/status.c,$(wildcard proto/*.c))
data_src := $(wildcard client/import/*.c)
daemon_src := $(wildcard daemon/*.c)
client_src := $(wildcard client/*.c) $(data_src)
obj = $(patsubst %.c,$(BUILD)/%.o,$(1))

.PHONY: all
all: $(BUILD)/fhd $(BUILD)/fhctl

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
$(BUILD)/libfhclient.a: $(call obj,$(filter-out client/fhctl.c,$(client_src)))
	rm -f $@; ar rcs $@ $^
$(BUILD)/libfhd.a: $(call obj,$(filter-out daemon/main.c,$(daemon_src)))
	rm -f $@; ar rcs $@ $^

$(BUILD)/fhd: $(BUILD)/daemon/main.o $(BUILD)/libfhd.a $(BUILD)/libfhproto.a $(BUILD)/libfhgpu.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(BUILD)/libfhgpu.a $(DAEMON_LIBS) $(GPU_LIBS)
$(BUILD)/fhctl: $(BUILD)/client/fhctl.o $(BUILD)/libfhclient.a $(BUILD)/libfhproto.a $(BUILD)/libfhgpu.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ $(BUILD)/libfhgpu.a $(CLIENT_LIBS) $(GPU_LIBS)

# ---------------------------------------------------------------- C tests: one program a file
# tests/unit/gpu_*.c and tests/train/*.c link the gpu library alone; proto_*.c the proto library too; daemon_*.c and
# client_*.c theirs as well.
unit_src := $(wildcard tests/unit/*.c tests/train/*.c)
unit_bin := $(patsubst %.c,$(BUILD)/%,$(unit_src))
$(BUILD)/tests/unit/gpu_%: $(BUILD)/tests/unit/gpu_%.o $(BUILD)/libfhgpu.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(GPU_LIBS)
$(BUILD)/tests/train/%: $(BUILD)/tests/train/%.o $(BUILD)/libfhgpu.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(GPU_LIBS)
$(BUILD)/tests/unit/proto_%: $(BUILD)/tests/unit/proto_%.o $(BUILD)/libfhproto.a $(BUILD)/libfhgpu.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(PROTO_LIBS) $(GPU_LIBS)
$(BUILD)/tests/unit/daemon_%: $(BUILD)/tests/unit/daemon_%.o $(BUILD)/libfhd.a $(BUILD)/libfhproto.a $(BUILD)/libfhgpu.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(DAEMON_LIBS) $(GPU_LIBS)
$(BUILD)/tests/unit/client_%: $(BUILD)/tests/unit/client_%.o $(BUILD)/libfhclient.a $(BUILD)/libfhproto.a $(BUILD)/libfhgpu.a
	$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcmocka $(CLIENT_LIBS) $(GPU_LIBS)
.SECONDARY:

.PHONY: clean
clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
