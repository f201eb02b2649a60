// Which instruction set runs: the best that was compiled in and that the processor has.

#include <cstdlib>
#include <cstring>

#include "cpu/linear.h"

namespace andrea::cpu {

// Those that this compiler and this kind of processor have: cmake/CpuPaths.cmake.
#define ANDREA_PATH(name) extern const Path name;
ANDREA_CPU_PATHS
#undef ANDREA_PATH
extern const Path kPortable;

const Path* const* all_paths() {
#define ANDREA_PATH(name) &(name),
  static const Path* const paths[] = {ANDREA_CPU_PATHS & kPortable, nullptr};
#undef ANDREA_PATH
  return paths;
}

const Path& chosen_path() {
  static const Path& chosen = []() -> const Path& {
    const char* const asked = std::getenv("ANDREA_CPU_PATH");
    const Path* best = nullptr;
    for (const Path* const* path = all_paths(); *path != nullptr; ++path) {
      if (!(*path)->is_supported()) continue;
      if (best == nullptr) best = *path;
      if (asked != nullptr && std::strcmp(asked, (*path)->name) == 0) return **path;
    }
    return best == nullptr ? kPortable : *best;
  }();
  return chosen;
}

}  // namespace andrea::cpu
