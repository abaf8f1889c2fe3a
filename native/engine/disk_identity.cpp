#include "native/engine/disk_identity.h"

#include <dlfcn.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

#include <algorithm>
#include <fstream>
#include <sstream>

#include "native/base/checksum.h"

namespace capstan {
namespace {

constexpr int kIdentityVersion = 1;

// Returns a digest of the file that this code is in. Another build may compute other bits.
Hash128 build_digest() {
  static const Hash128 digest = [] {
    Dl_info info{};
    const bool is_found = dladdr(reinterpret_cast<const void*>(&disk_cache_identity), &info) != 0;
    try {
      if (is_found && info.dli_fname != nullptr) return disk::digest_of(info.dli_fname);
    } catch (const Error&) {
      // The path may be relative to another folder.
    }
    return disk::digest_of("/proc/self/exe");
  }();
  return digest;
}

// The tables of rotations are computed with the C library.
const char* libc_version() {
#ifdef __GLIBC__
  return gnu_get_libc_version();
#else
  return "other";
#endif
}

// Approximate instructions differ between the makes of processors.
std::string processor_name() {
  static const std::vector<std::string> names{"vendor_id", "cpu family",      "model",
                                              "stepping",  "CPU implementer", "CPU part"};
  std::ifstream file("/proc/cpuinfo");
  std::string name;
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const std::string key = line.substr(0, line.find_first_of("\t:"));
    if (std::ranges::find(names, key) != names.end()) name += line.substr(line.find(':') + 1);
  }
  return name;
}

// The rotation of some models depends on the context length.
bool depends_on_context_length(const RopeSpec& rope) {
  return rope.type == RopeType::kDynamic || !rope.long_frequency_divisors.empty();
}

}  // namespace

std::string disk_cache_identity(const LoadRequest& request, const BackendInfo& backend, const DeviceLimits& limits,
                                int max_model_len, const std::vector<Hash128>& file_digests) {
  std::ostringstream text;
  text << "format " << kIdentityVersion << "\nbuild " << disk::hex_of(build_digest()) << "\nlibc " << libc_version()
       << "\nprocessor" << processor_name() << "\nmodel " << request.disk_cache.model_digest << '\n';
  for (const Hash128& digest : file_digests)
    text << "file " << disk::hex_of(digest) << '\n';
  text << "device " << backend.name << ' ' << backend.isa << "\nweights " << dtype_name(request.device.weight_dtype)
       << ' ' << quantization_name(request.quantization) << "\ncompute " << dtype_name(backend.compute_dtype) << ' '
       << (request.compute == ComputeChoice::kF32 ? "f32" : "default") << "\nkv " << dtype_name(limits.kv_cache_dtype)
       << ' ' << limits.block_size << "\nranks " << request.device.world_size << '\n';
  if (std::ranges::any_of(request.spec.ropes, depends_on_context_length)) text << "context " << max_model_len << '\n';
  return text.str();
}

AdapterKey adapter_content_key(const AdapterSource& source, const std::vector<disk::OpenFile>& files) {
  std::ostringstream text;
  for (const disk::OpenFile& file : files)
    text << disk::hex_of(disk::digest_of(file)) << '\n';
  for (const AdapterModule& module : source.modules) {
    text << module.layer << ' ' << module.projection << ' ' << std::hexfloat << module.scale;
    for (const TensorEntry* tensor : {&module.a, &module.b})
      text << ' ' << tensor->file_idx << ' ' << tensor->offset << ' ' << dtype_name(tensor->dtype);
    text << '\n';
  }
  const std::string content = text.str();
  return sip_hash_128({}, std::as_bytes(std::span(content)));
}

}  // namespace capstan
