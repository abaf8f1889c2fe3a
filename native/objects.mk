# The objects of programs that link the engine: the native tests and benchmarks. The including file sets ROOT, OUT, CXX,
# CXXFLAGS and ARCH.

# The addon has compiled the engine with the flags of the product, so these programs link its objects, and compile only
# what is not in it. Other compilers, processors and sanitizers compile everything. So do machines without npm packages.
ADDON := $(ROOT)/build/Release/obj.target
ifeq ($(SANITIZE)$(filter-out g++,$(CXX))$(filter-out $(shell uname -m),$(ARCH)),)
ifneq ($(wildcard $(ROOT)/node_modules/node-gyp),)
ifneq ($(shell node $(ROOT)/native/build.js >&2 && echo built),built)
$(error the addon does not compile)
endif
# Not in it: kernels of other processors, and the twin of AMX, which only isa.cpp of the tests knows.
OTHER_KERNELS := $(if $(filter x86_64,$(ARCH)),neon neondot neonbf16,avx2 avxvnni avx512 avx512vnni avx512bf16 amx)
NOT_IN_ADDON := %/isa.cpp $(patsubst %,\%/kernels_%.cpp,$(OTHER_KERNELS))
ADDON_FOLDERS := base backend backend/cpu bench comm disk engine grammar model
ADDON_SOURCES := $(wildcard $(patsubst %,$(ROOT)/native/%/*.cpp,$(ADDON_FOLDERS)))
IN_ADDON := $(filter-out $(NOT_IN_ADDON),$(ADDON_SOURCES))
endif
endif

# A file kernels_X.cpp is in a library of its own.
addon_library = $(if $(filter kernels_%,$(notdir $(1))),$(basename $(notdir $(1))),capstan)
addon_objects = $(foreach file,$(1),$(ADDON)/$(call addon_library,$(file))$(patsubst $(ROOT)%.cpp,%.o,$(file)))
own_objects = $(patsubst $(ROOT)/%.cpp,$(OUT)/%.o,$(patsubst $(ROOT)/%.cu,$(OUT)/%.o,$(1)))
objects = $(call addon_objects,$(filter $(IN_ADDON),$(1))) $(call own_objects,$(filter-out $(IN_ADDON),$(1)))

# The flags of binding.gyp. The kernels of other processors are empty files.
ifeq ($(ARCH),x86_64)
AVX512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c
$(OUT)/native/backend/cpu/kernels_avx2.o: CXXFLAGS += -mavx2 -mfma -mf16c
$(OUT)/native/backend/cpu/kernels_avxvnni.o: CXXFLAGS += -mavx2 -mfma -mf16c -mavxvnni
$(OUT)/native/backend/cpu/kernels_avx512.o: CXXFLAGS += $(AVX512)
$(OUT)/native/backend/cpu/kernels_avx512vnni.o: CXXFLAGS += $(AVX512) -mavx512vnni
$(OUT)/native/backend/cpu/kernels_avx512bf16.o: CXXFLAGS += $(AVX512) -mavx512vnni -mavx512bf16
$(OUT)/native/backend/cpu/kernels_amx.o: CXXFLAGS += $(AVX512) -mavx512vnni -mavx512bf16
endif
ifeq ($(ARCH),aarch64)
$(OUT)/native/backend/cpu/kernels_neondot.o: CXXFLAGS += -march=armv8.2-a+dotprod
$(OUT)/native/backend/cpu/kernels_neonbf16.o: CXXFLAGS += -march=armv8.2-a+dotprod+bf16+i8mm
endif

$(OUT)/%.o: $(ROOT)/%.cpp
	@mkdir -p $(dir $@)
	$(CXX) $(CXXFLAGS) -MMD -MP -MT $@ -c -o $@ $<
