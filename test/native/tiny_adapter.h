#pragma once
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "native/model/adapter_weights.h"
#include "test/native/checkpoint.h"
#include "test/native/testing.h"

namespace capstan::testing {

// An adapter file with random factors.
class TinyAdapter {
 public:
  explicit TinyAdapter(uint64_t seed = 1) : seed_(seed) {
    char path[] = "/tmp/capstan-adapter-XXXXXX";
    fd_ = ::mkstemp(path);
    path_ = path;
    source.files = {path_};
  }
  ~TinyAdapter() {
    ::close(fd_);
    ::unlink(path_.c_str());
  }
  TinyAdapter(const TinyAdapter&) = delete;
  TinyAdapter& operator=(const TinyAdapter&) = delete;

  AdapterSource source;

  TinyAdapter& add(int layer, const std::string& projection, int64_t r, int64_t inputs, int64_t outputs,
                   float deviation = 0.3f) {
    const std::string name = "layers." + std::to_string(layer) + "." + projection;
    AdapterModule module{layer, projection, {}, {}, 2.0f};
    module.a = write(name + ".lora_A", r, inputs, deviation);
    module.b = write(name + ".lora_B", outputs, r, deviation);
    if (module.is_of_table()) {
      module.a.shape = {inputs, r};
      module.a.is_transposed = true;
    }
    source.modules.push_back(module);
    return *this;
  }

 private:
  TensorEntry write(const std::string& name, int64_t rows, int64_t cols, float deviation) {
    const std::vector<float> values = random_values(++seed_, rows * cols, deviation);
    TensorEntry entry;
    entry.name = name;
    entry.offset = end_;
    entry.shape = {rows, cols};
    const size_t bytes = values.size() * sizeof(float);
    EXPECT(::write(fd_, values.data(), bytes) == static_cast<ssize_t>(bytes));
    end_ += bytes;
    return entry;
  }

  uint64_t seed_;
  int fd_ = -1;
  std::string path_;
  uint64_t end_ = 0;
};

}  // namespace capstan::testing
