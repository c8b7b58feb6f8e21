// What a knee may be looked for of: the resources of a machine, their values as people write them,
// and the machine with another value.
#pragma once

#include <string>
#include <vector>

#include "base/message.hpp"
#include "experiments/plan/problem_request.hpp"
#include "experiments/questions/knee.hpp"
#include "policies/machine/machine.hpp"

namespace spillway {

// How values of a resource are written, and where they are set.
enum class ResourceKind { drives, host_memory, gpu_memory, link, rate };

struct KneeResource {
  std::string name;
  ResourceKind kind;
  int set = 0;  // of drives
};

// Throws InputError with near names.
const KneeResource& resource_named(const std::string& name);

// In units of the resource: drives, bytes, times the rate that there is; and as people read it.
double parse_value(const KneeResource& resource, const std::string& text);
std::string value_text(ResourceKind kind, double value);

double value_now(const ProblemRequest& request, const Machine& machine,
                 const KneeResource& resource);
// Those to be tried, ascending, `now` among them; of a range without any, the usual ones.
std::vector<double> values_of(const KneeRange& range, const KneeResource& resource,
                              const ProblemRequest& request, const Machine& machine, double now);

// Whether more drives of a set mean more bandwidth in proportion: it has no table of them, or the
// bandwidths are set by hand.
bool in_proportion(const ProblemRequest& request, const Machine& machine, int set);

// Empty: the machine has the resource.
std::string why_not_there(const KneeResource& resource, const Machine& machine);

// Keys that make a machine of another value; none of a rate that no key stands for.
std::vector<Setting> changes_of(const KneeResource& resource, const ProblemRequest& request,
                                const Machine& machine, double value);

// The problem on the machine of a point. A limit that is set by hand is what is varied where there
// is one, not the size of the machine's memory.
Problem problem_at(const ProblemRequest& request, const KneeResource& resource,
                   const KneePoint& point);

}  // namespace spillway
