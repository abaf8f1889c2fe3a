#pragma once
// Repeated runs of one case, which must write the same bits, and their comparison with carried reference values.
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "benchmarks/gpu/kernel_cases.h"

namespace capstan::benchmarks {

constexpr int kNumSamples = 16;  // reference values of a case

using References = std::map<std::string, std::vector<Sample>>;  // by the name of the case

// The shapes of this run are part of the name.
std::string reference_name(const KernelCase& one);
// Prints the reference values of all cases: lines of a name, an element, a value and a tolerance, separated by tabs.
// Uses no device.
void write_references();
References read_references(const char* file);

// Runs a case `repeats` times, with its outputs restored before each run. Prints one JSON line. Returns false if a run
// wrote other bits than the first one, or if an element differs from its reference.
bool check_repeats(const KernelCase& one, int repeats, const References& references, cudaStream_t stream);

}  // namespace capstan::benchmarks
