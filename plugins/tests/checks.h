// Counts named checks and reports them as JSON: what the test programs have in common.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace andrea::tests {

class Checks {
 public:
  void expect(bool holds, std::string const& what)
  {
    ++num_checks_;
    if (!holds) {
      failures_.push_back(what);
    }
  }

  // {"checks": n, "failures": [...]} on stdout. The exit code: 0 if every check held.
  [[nodiscard]] int report() const
  {
    std::printf(R"({"checks": %d, "failures": [)", num_checks_);
    for (std::size_t i = 0; i < failures_.size(); ++i) {
      std::printf("%s\"%s\"", i == 0 ? "" : ", ", failures_[i].c_str());
    }
    std::printf("]}\n");
    return failures_.empty() ? 0 : 1;
  }

 private:
  int num_checks_ = 0;
  std::vector<std::string> failures_;
};

}  // namespace andrea::tests
