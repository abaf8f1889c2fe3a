// The files of the prefix cache on disk: nothing but an intact block of the wanted tokens is ever read from them,
// whatever happens to the files and to the processes that write them.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "native/base/checksum.h"
#include "native/disk/block_store.h"
#include "native/disk/file_digest.h"
#include "native/model/checkpoint_files.h"
#include "test/native/gate.h"
#include "test/native/temporary_folder.h"
#include "test/native/testing.h"

namespace capstan::disk {
namespace {

using namespace capstan::testing;
namespace fs = std::filesystem;

constexpr int kBlockSize = 4;
constexpr size_t kPayload = 3000;

// The blocks of the tests: block `i` of chain `chain`, with a content that depends on both.
BlockId id_of(uint64_t chain, uint64_t i, uint64_t salt = 0) {
  return {{chain << 32 | i, salt}, {chain << 32 | (i - 1), salt}, 0};
}

std::vector<int32_t> tokens_of(uint64_t chain, uint64_t i) {
  std::vector<int32_t> tokens(kBlockSize);
  std::iota(tokens.begin(), tokens.end(), static_cast<int32_t>(chain * 1000 + i * kBlockSize));
  return tokens;
}

std::byte content_of(uint64_t chain, uint64_t i, size_t at) {
  return static_cast<std::byte>(chain * 31 + i * 7 + at % 251);
}

StoreOptions options_of(const std::string& path, int64_t max_bytes = int64_t{1} << 30,
                        const std::string& identity = "a model") {
  StoreOptions options;
  options.root = std::make_shared<const CacheRoot>(path);
  options.identity = identity;
  options.max_bytes = max_bytes;
  options.block_size = kBlockSize;
  options.payload_bytes = {kPayload};
  options.buffer_bytes = size_t{64} << 10;
  return options;
}

template <typename Condition>
void wait_until(Condition condition) {
  bool is_met = condition();
  for (int i = 0; i < 300'000 && !is_met; ++i, is_met = condition())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT(is_met);
}

void write(BlockStore& store, uint64_t chain, uint64_t i) {
  Image image;
  wait_until([&] { return (image = store.take_image()) != nullptr; });
  for (size_t at = 0; at < kPayload; ++at)
    image[store.shape().payload_at() + at] = content_of(chain, i, at);
  store.write(id_of(chain, i), tokens_of(chain, i), std::move(image));
}

// Writes blocks and waits until they are on the disk, or skipped.
void write_all(BlockStore& store, uint64_t chain, uint64_t begin, uint64_t end) {
  const auto num_done = [&] {
    const StoreStats stats = store.stats();
    return static_cast<uint64_t>(stats.num_written + stats.num_skipped);
  };
  const uint64_t before = num_done();
  for (uint64_t i = begin; i < end; ++i)
    write(store, chain, i);
  wait_until([&] { return num_done() == before + (end - begin); });
}

// Returns how many blocks, from `begin` on, are read. Their contents must be right.
uint64_t read_all(BlockStore& store, uint64_t chain, uint64_t begin, uint64_t end) {
  auto job = std::make_shared<LoadJob>();
  for (uint64_t i = begin; i < end; ++i) {
    job->blocks.push_back(id_of(chain, i));
    const auto tokens = tokens_of(chain, i);
    job->tokens.insert(job->tokens.end(), tokens.begin(), tokens.end());
  }
  job->deadline = Clock::now() + std::chrono::hours(1);
  EXPECT(store.load(job));
  uint64_t count = 0;
  for (;;) {
    LoadedBlock loaded;
    wait_until([&] { return store.take_loaded(loaded); });
    if (!loaded.image) return count;
    EXPECT_EQ(loaded.idx, count);
    bool is_same = true;
    for (size_t at = 0; at < kPayload; ++at)
      is_same &= loaded.image[store.shape().payload_at() + at] == content_of(chain, begin + count, at);
    EXPECT(is_same);
    ++count;
    store.recycle(std::move(loaded.image));
  }
}

std::vector<fs::path> files_below(const std::string& path) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(path))
    if (entry.path().filename().string().ends_with(".0")) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

int64_t bytes_below(const std::string& path) {
  int64_t bytes = 0;
  for (const fs::path& file : files_below(path))
    bytes += disk_bytes(fs::file_size(file));
  return bytes;
}

const int64_t kFileBytes = disk_bytes(ImageShape{{}, kBlockSize, {kPayload}}.file_bytes(0));

// ---- images ----

TEST(disk_image_is_good_only_with_every_byte_and_the_wanted_tokens) {
  const ImageShape shape{{1, 2}, kBlockSize, {100}};
  std::vector<std::byte> image(shape.file_bytes(0), std::byte{42});
  const BlockId id = id_of(1, 2);
  const auto tokens = tokens_of(1, 2);
  seal_image(shape, id, tokens, image);
  EXPECT(check_image(shape, id, tokens, image) == ImageState::kGood);
  EXPECT(check_image(shape, id, tokens_of(1, 3), image) == ImageState::kOther);
  EXPECT(check_image(shape, id_of(2, 2), tokens, image) == ImageState::kOther);
  EXPECT(check_image(shape, {id.key, id_of(9, 9).key, 0}, tokens, image) == ImageState::kOther);
  const ImageShape other_store{{1, 3}, kBlockSize, {100}};
  EXPECT(check_image(other_store, id, tokens, image) == ImageState::kDamaged);
  for (size_t at = 0; at < image.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      image[at] ^= std::byte{1} << bit;
      EXPECT(check_image(shape, id, tokens, image) == ImageState::kDamaged);
      image[at] ^= std::byte{1} << bit;
    }
    EXPECT(check_image(shape, id, tokens, std::span(image).first(at)) == ImageState::kDamaged);
  }
}

TEST(disk_image_check_accepts_any_bytes) {
  std::mt19937_64 random(7);
  const ImageShape shape{{1, 2}, kBlockSize, {100}};
  std::vector<std::byte> sealed(shape.file_bytes(0));
  seal_image(shape, id_of(1, 2), tokens_of(1, 2), sealed);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> image = sealed;
    // Overwrites a range with random bytes, zeros, or another part of the image.
    const size_t begin = random() % image.size(), count = 1 + random() % (image.size() - begin);
    const auto kind = random() % 3;
    for (size_t i = 0; i < count; ++i)
      image[begin + i] = kind == 0   ? static_cast<std::byte>(random())
                         : kind == 1 ? std::byte{0}
                                     : sealed[(begin + i + 16) % sealed.size()];
    const ImageState state = check_image(shape, id_of(1, 2), tokens_of(1, 2), image);
    EXPECT((state == ImageState::kGood) == (image == sealed));
    image.resize(random() % (2 * sealed.size()));
    if (image.size() != sealed.size())
      EXPECT(check_image(shape, id_of(1, 2), tokens_of(1, 2), image) == ImageState::kDamaged);
  }
}

TEST(disk_checksum_depends_on_length_key_and_every_bit) {
  std::set<Hash128> seen;
  std::vector<std::byte> message(300);
  for (size_t size = 0; size <= message.size(); ++size)
    EXPECT(seen.insert(checksum_128({1, 2}, std::span(message).first(size))).second);
  EXPECT(seen.insert(checksum_128({1, 3}, message)).second);
  for (size_t bit = 0; bit < message.size() * 8; ++bit) {
    message[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT(seen.insert(checksum_128({1, 2}, message)).second);
    message[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

// ---- stores ----

TEST(disk_store_keeps_blocks_over_a_restart) {
  const TemporaryFolder folder;
  {
    BlockStore store(options_of(folder.path()));
    write_all(store, 1, 0, 40);
    EXPECT_EQ(read_all(store, 1, 0, 40), 40u);
  }
  BlockStore store(options_of(folder.path()));
  const std::vector<BlockId> wanted{id_of(1, 0), id_of(1, 1), id_of(2, 0), id_of(1, 2)};
  EXPECT_EQ(store.count_held(wanted), 2u);
  EXPECT_EQ(read_all(store, 1, 0, 41), 40u);
  EXPECT_EQ(store.stats().num_blocks, 40);
  EXPECT_EQ(store.stats().bytes, 40 * kFileBytes);
  EXPECT(store.read_bytes_per_ms() > 0);
  // Another identity: nothing is found.
  BlockStore other(options_of(folder.path(), int64_t{1} << 30, "another model"));
  EXPECT_EQ(other.stats().num_blocks, 0);
  EXPECT_EQ(other.stats().bytes, 40 * kFileBytes);
}

TEST(disk_store_is_private) {
  const TemporaryFolder folder;
  umask(0);
  BlockStore store(options_of(folder.path() + "/made/by it"));
  write_all(store, 1, 0, 2);
  for (const auto& entry : fs::recursive_directory_iterator(folder.path() + "/made/by it")) {
    struct stat status{};
    EXPECT_EQ(lstat(entry.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0077U, 0u);
  }
}

TEST(disk_store_refuses_folders_that_others_can_write_to) {
  const TemporaryFolder folder;
  fs::permissions(folder.path(), fs::perms(0777));
  EXPECT_ERROR("invalid_argument", CacheRoot(folder.path()));
  fs::permissions(folder.path(), fs::perms(0755));
  const CacheRoot root(folder.path());
  std::ofstream(folder.path() + "/file") << "text";
  EXPECT_ERROR("invalid_argument", CacheRoot(folder.path() + "/file"));
  EXPECT_ERROR("invalid_argument", CacheRoot(folder.path() + "/file/below"));
  EXPECT_ERROR("invalid_argument", CacheRoot("/proc/nowhere"));
  EXPECT_ERROR("invalid_argument", BlockStore(options_of(folder.path(), 1000)));
}

// A link in the place of a store, of a block, or of the file with the secret.
TEST(disk_store_follows_no_links) {
  const TemporaryFolder folder, elsewhere;
  std::string name;
  {
    BlockStore store(options_of(folder.path()));
    write_all(store, 1, 0, 3);
  }
  const fs::path block = files_below(folder.path())[1], store_folder = block.parent_path();
  const fs::path target = elsewhere.path() + "/target";
  fs::copy_file(block, target);
  fs::remove(block);
  fs::create_symlink(target, block);
  {
    BlockStore store(options_of(folder.path()));
    EXPECT_EQ(store.stats().num_blocks, 2);
    EXPECT(!fs::is_symlink(block));
    // Planted while the store is open.
    const fs::path first = files_below(folder.path())[0];
    fs::remove(first);
    fs::create_symlink(target, first);
    EXPECT_EQ(read_all(store, 1, 0, 1), 0u);
    EXPECT_EQ(store.stats().num_damaged, 1);
    EXPECT(fs::exists(target) && !fs::is_symlink(first));
  }
  fs::remove(store_folder / "store");
  fs::create_symlink(target, store_folder / "store");
  {
    BlockStore store(options_of(folder.path()));
    EXPECT_EQ(store.stats().num_blocks, 0);
    EXPECT(fs::file_size(target) > 1000);
  }
  fs::rename(store_folder, elsewhere.path() + "/moved");
  fs::create_directory_symlink(elsewhere.path() + "/moved", store_folder);
  EXPECT_ERROR("invalid_argument", BlockStore(options_of(folder.path())));
}

TEST(disk_store_removes_damaged_files) {
  std::mt19937_64 random(3);
  const TemporaryFolder folder;
  constexpr uint64_t kNum = 60;
  {
    BlockStore store(options_of(folder.path()));
    write_all(store, 1, 0, kNum);
  }
  std::map<std::string, int> damage;  // by name
  for (const fs::path& file : files_below(folder.path())) {
    const int kind = static_cast<int>(random() % 4);
    damage[file.filename()] = kind;
    const auto size = static_cast<size_t>(fs::file_size(file));
    if (kind == 1) fs::resize_file(file, random() % size);
    if (kind == 2) {
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      const auto at = static_cast<std::streamoff>(random() % size);
      stream.seekg(at);
      const int byte = stream.get();
      stream.seekp(at);
      stream.put(static_cast<char>(byte ^ 0x10));
    }
    if (kind == 3) fs::resize_file(file, size + 1 + random() % 100);
  }
  std::ofstream(files_below(folder.path())[0].parent_path() / "tmp-0123") << "unfinished";
  BlockStore store(options_of(folder.path()));
  EXPECT(!fs::exists(files_below(folder.path())[0].parent_path() / "tmp-0123"));
  int64_t num_changed = 0;
  for (uint64_t i = 0; i < kNum; ++i) {
    const int kind = damage[hex_of(id_of(1, i).key) + ".0"];
    EXPECT_EQ(read_all(store, 1, i, i + 1), kind == 0 ? 1u : 0u);
    num_changed += kind == 2 ? 1 : 0;
  }
  EXPECT(num_changed > 0);
  EXPECT_EQ(store.stats().num_damaged, num_changed);
  const auto num_left = static_cast<size_t>(std::ranges::count(damage, 0, &std::pair<const std::string, int>::second));
  EXPECT_EQ(files_below(folder.path()).size(), num_left);
}

// The tokens decide, also for a block that is intact and has the wanted key.
TEST(disk_store_compares_tokens) {
  const TemporaryFolder folder;
  BlockStore store(options_of(folder.path()));
  write_all(store, 1, 0, 1);
  auto job = std::make_shared<LoadJob>();
  job->blocks = {id_of(1, 0)};
  job->tokens = tokens_of(1, 1);
  job->deadline = Clock::now() + std::chrono::hours(1);
  EXPECT(store.load(job));
  LoadedBlock loaded;
  wait_until([&] { return store.take_loaded(loaded); });
  EXPECT(!loaded.image);
  EXPECT_EQ(read_all(store, 1, 0, 1), 1u);
}

TEST(disk_store_evicts_the_least_recently_used_blocks) {
  const TemporaryFolder folder;
  const int64_t limit = 20 * kFileBytes;
  {
    BlockStore store(options_of(folder.path(), limit));
    write_all(store, 1, 0, 20);
    const std::vector<BlockId> used{id_of(1, 0), id_of(1, 1), id_of(1, 2)};
    store.touch(used);
    write_all(store, 2, 0, 15);
    EXPECT_EQ(store.stats().num_evicted, 15);
    EXPECT_EQ(read_all(store, 1, 0, 4), 3u);
    EXPECT_EQ(read_all(store, 2, 0, 15), 15u);
    EXPECT_EQ(bytes_below(folder.path()), limit);
  }
  // The limit counts the blocks of all stores, and a lower one holds at once.
  BlockStore other(options_of(folder.path(), limit / 2, "another model"));
  EXPECT_EQ(bytes_below(folder.path()), limit / 2);
  write_all(other, 1, 0, 10);
  EXPECT_EQ(other.stats().num_blocks, 10);
  EXPECT_EQ(bytes_below(folder.path()), limit / 2);
}

TEST(disk_store_is_shared_by_processes) {
  const TemporaryFolder folder;
  BlockStore first(options_of(folder.path()));
  write_all(first, 1, 0, 5);
  BlockStore second(options_of(folder.path()));
  EXPECT_EQ(read_all(second, 1, 0, 5), 5u);
  write_all(second, 2, 0, 5);
  EXPECT_EQ(read_all(first, 2, 0, 5), 5u);
  // Both write the same blocks, and one of them removes some.
  write_all(first, 3, 0, 5);
  write_all(second, 3, 0, 5);
  for (const fs::path& file : files_below(folder.path()))
    fs::remove(file);
  EXPECT_EQ(read_all(first, 3, 0, 5), 0u);
  EXPECT_EQ(first.stats().num_damaged, 0);
  write_all(first, 3, 0, 5);
  EXPECT_EQ(read_all(first, 3, 0, 5), 5u);
}

// All find no store. Each would make one, with another secret.
TEST(disk_store_is_made_once_by_processes_that_start_together) {
  for (int round = 0; round < 100; ++round) {
    const TemporaryFolder folder;
    int start[2], result[2];
    EXPECT(pipe(start) == 0 && pipe(result) == 0);
    pid_t children[8];
    for (int i = 0; i < 8; ++i) {
      children[i] = fork();
      if (children[i] != 0) continue;
      close(start[1]);
      char byte = 0;
      Hash128 secret{};
      if (::read(start[0], &byte, 1) != 0) _exit(1);
      std::this_thread::sleep_for(std::chrono::microseconds(40 * i));
      try {
        secret = StoreFolder(std::make_shared<const CacheRoot>(folder.path()), "a model").secret();
      } catch (...) {
      }
      _exit(::write(result[1], &secret, sizeof(secret)) == sizeof(secret) ? 0 : 1);
    }
    close(start[0]);
    close(start[1]);  // all begin
    Hash128 secrets[8]{};
    for (Hash128& secret : secrets)
      EXPECT_EQ(::read(result[0], &secret, sizeof(secret)), static_cast<ssize_t>(sizeof(secret)));
    for (const pid_t child : children)
      waitpid(child, nullptr, 0);
    close(result[0]);
    close(result[1]);
    EXPECT(secrets[0] != Hash128{});
    EXPECT_EQ(std::ranges::count(secrets, secrets[0]), 8);
  }
}

TEST(disk_store_writes_nothing_while_the_disk_is_full) {
  const TemporaryFolder folder;
  StoreOptions options = options_of(folder.path());
  std::atomic<int> error{0}, num_tries{0};
  options.before_write = [&] {
    ++num_tries;
    return error.load();
  };
  BlockStore store(std::move(options));
  write_all(store, 1, 0, 2);
  error.store(ENOSPC);
  write_all(store, 1, 2, 10);
  EXPECT_EQ(num_tries.load(), 3);
  EXPECT(!store.accepts_writes());
  const StoreStats stats = store.stats();
  EXPECT_EQ(stats.num_skipped, 8);
  EXPECT(stats.problem.find("No space left") != std::string::npos);
  EXPECT_EQ(read_all(store, 1, 0, 10), 2u);
}

// An error of a thread ends its direction, not the process.
TEST(disk_store_survives_errors_of_its_threads) {
  const TemporaryFolder folder;
  StoreOptions options = options_of(folder.path());
  std::atomic<bool> fails_write{false}, fails_read{false};
  const auto fail_if = [](const std::atomic<bool>& fails) {
    if (fails.load()) throw std::bad_alloc();
    return 0;
  };
  options.before_write = [&] { return fail_if(fails_write); };
  options.before_read = [&] { fail_if(fails_read); };
  BlockStore store(std::move(options));
  write_all(store, 1, 0, 4);
  EXPECT_EQ(store.stats().problem, "");
  fails_write.store(true);
  write_all(store, 1, 4, 8);
  EXPECT(!store.accepts_writes());
  EXPECT(store.stats().problem.find("no more blocks are written to " + folder.path()) != std::string::npos);
  EXPECT_EQ(store.stats().num_written, 4);
  EXPECT_EQ(read_all(store, 1, 0, 8), 4u);
  fails_read.store(true);
  EXPECT_EQ(read_all(store, 1, 0, 4), 0u);
  // A prompt finds nothing on the disk any more.
  const std::vector<BlockId> ids{id_of(1, 0)};
  EXPECT_EQ(store.count_held(ids), 0u);
  EXPECT(!store.load(std::make_shared<LoadJob>()));
}

// What waits for a disk that hangs is dropped after a while.
TEST(disk_store_that_closes_drops_what_waits_too_long) {
  const TemporaryFolder folder;
  StoreOptions options = options_of(folder.path());
  options.close_patience = std::chrono::milliseconds(0);
  std::atomic<bool> is_closing{false};
  std::atomic<int> num_tries{0};
  options.before_write = [&] {
    ++num_tries;
    wait_until([&] { return is_closing.load(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return 0;
  };
  {
    BlockStore store(std::move(options));
    for (uint64_t i = 0; i < 12; ++i)
      write(store, 1, i);
    is_closing.store(true);
  }
  EXPECT(num_tries.load() < 12);
}

TEST(disk_store_never_makes_its_owner_wait) {
  const TemporaryFolder folder;
  StoreOptions options = options_of(folder.path());
  Gate gate;
  options.before_write = [&] {
    gate.pass();
    return 0;
  };
  std::atomic<bool> has_news{false};
  options.on_news = [&] { has_news.store(true); };
  gate.close();
  BlockStore store(std::move(options));
  int num_images = 0;
  for (Image image = store.take_image(); image; image = store.take_image()) {
    store.write(id_of(1, static_cast<uint64_t>(num_images)), tokens_of(1, static_cast<uint64_t>(num_images)),
                std::move(image));
    ++num_images;
  }
  EXPECT(num_images >= 2);
  EXPECT(!has_news.load());
  gate.open();
  wait_until([&] { return has_news.load(); });
  wait_until([&] { return store.stats().num_written == num_images; });
  EXPECT(store.take_image() != nullptr);
}

// The child is killed at any moment. What it leaves opens, and each block that is there is complete.
TEST(disk_store_survives_kill_at_any_moment) {
  std::mt19937_64 random(11);
  const TemporaryFolder folder;
  uint64_t num_seen = 0;
  for (int round = 0; round < 12; ++round) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      BlockStore store(options_of(folder.path(), 200 * kFileBytes));
      for (uint64_t i = 0;; ++i) {
        write(store, static_cast<uint64_t>(round), i);
        if (i == 20 && ::write(ready[1], "x", 1) != 1) _exit(1);
      }
    }
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(ready[0]);
    close(ready[1]);
    BlockStore store(options_of(folder.path(), 200 * kFileBytes));
    for (const auto& entry : fs::recursive_directory_iterator(folder.path()))
      EXPECT(!entry.path().filename().string().starts_with("tmp-"));
    for (uint64_t i = 0; i < 400; ++i)
      num_seen += read_all(store, static_cast<uint64_t>(round), i, i + 1);
    EXPECT_EQ(store.stats().num_damaged, 0);
    EXPECT(bytes_below(folder.path()) <= 200 * kFileBytes);
  }
  EXPECT(num_seen > 12);
}

// Random operations, compared with a list of what was written.
TEST(disk_store_random_operations_keep_the_index_true) {
  std::mt19937_64 random(5);
  const TemporaryFolder folder;
  const int64_t limit = 30 * kFileBytes;
  auto store = std::make_unique<BlockStore>(options_of(folder.path(), limit));
  std::set<std::pair<uint64_t, uint64_t>> written;
  for (int round = 0; round < 400; ++round) {
    const uint64_t chain = random() % 6, begin = random() % 12, end = begin + 1 + random() % 5;
    switch (random() % 5) {
      case 0:
      case 1:
        write_all(*store, chain, begin, end);
        for (uint64_t i = begin; i < end; ++i)
          written.emplace(chain, i);
        break;
      case 2:
        for (uint64_t i = begin; i < end; ++i) {
          const std::vector<BlockId> id{id_of(chain, i)};
          const bool is_held = store->count_held(id) == 1;
          EXPECT_EQ(read_all(*store, chain, i, i + 1), is_held ? 1u : 0u);
          if (is_held) EXPECT(written.contains({chain, i}));
        }
        break;
      case 3: {
        const std::vector<BlockId> ids{id_of(chain, begin), id_of(chain, end)};
        store->touch(ids);
        break;
      }
      default:
        if (random() % 8 == 0) store = std::make_unique<BlockStore>(options_of(folder.path(), limit));
    }
    const StoreStats stats = store->stats();
    EXPECT_EQ(stats.bytes, stats.num_blocks * kFileBytes);
    EXPECT(stats.bytes <= limit);
    EXPECT_EQ(bytes_below(folder.path()), stats.bytes);
  }
  EXPECT(store->stats().num_damaged == 0);
}

TEST(disk_file_digests_follow_the_content) {
  const TemporaryFolder folder, cache;
  const CacheRoot root(cache.path());
  const std::string path = folder.path() + "/weights";
  const auto digest_at = [&](const std::string& at) {
    const CheckpointFiles files({at});
    return digests_of(root, {{at, files.files()[0].fd}}, nullptr)[0];
  };
  const auto digest = [&] { return digest_at(path); };
  std::ofstream(path) << "one";
  const Hash128 one = digest();
  EXPECT(digest() == one);
  EXPECT(digest() == digest_of(path));
  std::ofstream(path) << "two";
  const Hash128 two = digest();
  EXPECT(two != one);
  fs::copy_file(path, path + "-copy");
  EXPECT(digest_at(path + "-copy") == two);
  EXPECT_ERROR("io_error", digest_of(path + "-missing"));
  // A damaged table is ignored.
  std::ofstream(cache.path() + "/model-files") << std::string(100'000, 'x') << "\n\n \n";
  EXPECT(digest() == two);
}

TEST(disk_file_digests_follow_the_open_file) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/weights";
  std::ofstream(path) << "one";
  const CheckpointFiles files({path});
  const std::vector<OpenFile> open_files{{path, files.files()[0].fd}};
  const std::vector<std::string> states = content_states(open_files);
  const Hash128 one = digest_of(path);
  // Another file takes its place.
  std::ofstream(path + "-new") << "other";
  fs::rename(path + "-new", path);
  EXPECT(digest_of(open_files[0]) == one);
  EXPECT(digest_of(path) != one);
  check_unchanged(open_files, states, "adapter");
  const CheckpointFiles other({path});
  EXPECT_ERROR("io_error", check_unchanged({{path, other.files()[0].fd}}, states, "adapter"));
}

}  // namespace
}  // namespace capstan::disk
