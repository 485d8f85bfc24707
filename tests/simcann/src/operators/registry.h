// How operators are declared and called.
//
// torch_npu runs an operator in two calls. aclnnXGetWorkspaceSize(arguments..., &workspace_size, &executor) checks the
// arguments and binds them to an executor; aclnnX(workspace, workspace_size, executor, stream) launches it. Here an
// operator is one function object whose parameter types say what torch_npu passes:
//
//   table.add("aclnnAdd", [](const Tensor& self, const Tensor& other, const Scalar& alpha, Output out) {
//     out = at::add(self, other, alpha);
//   });
//
// The first call is a template made from those types. Nothing describes the argument list at run time, so it is
// checked as far as possible before anything is used:
//   - every handle has to be a live handle of the declared kind;
//   - the two result pointers have to point to zeros in the caller's stack frame, which they do not if there are more
//     or fewer arguments than declared.
// Numbers of one register class that follow each other (bool, int64_t, int8_t; or float, double) look alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../runtime/error.h"
#include "handles.h"

struct aclOpExecutor {
  static constexpr auto kKind = simcann::Kind::kExecutor;
  std::string name;
  std::function<void()> run;
  // The shape of the result depends on the data, and the caller asks for it as soon as the launch returns.
  bool blocking = false;
};

namespace simcann {

using at::Tensor;
using c10::Scalar;
using IntArray = std::vector<std::int64_t>;
using TensorList = std::vector<Tensor>;

aclOpExecutor* add_executor(const std::string& name, std::function<void()> run, bool blocking);
std::shared_ptr<aclOpExecutor> take_executor(const aclOpExecutor* executor);

// A tensor that an operator writes its result to.
class Output {
 public:
  explicit Output(Tensor target) : target_(std::move(target)) {}

  // Throws unless the result has the shape of the tensor and fits its type.
  void operator=(const Tensor& result);

  const Tensor& tensor() const { return target_; }
  at::ScalarType type() const { return target_.scalar_type(); }

 private:
  Tensor target_;
};

using OutputList = std::vector<Output>;

// A tensor that is made large enough for any result; its shape is known when the operator has run.
class DynamicOutput {
 public:
  explicit DynamicOutput(std::shared_ptr<aclTensor> handle) : handle_(std::move(handle)) {}
  void operator=(const Tensor& result);

 private:
  std::shared_ptr<aclTensor> handle_;
};

// How an argument of a C function becomes a parameter of an operator.
template <class T>
struct Argument;

// A handle of the type, or throws. `nullable` allows a null pointer.
const void* check_handle(const void* address, Kind kind, int position, bool nullable);

template <class T, class HandleType>
struct HandleArgument {
  using Raw = const HandleType*;
  static const HandleType* check(Raw raw, int position, bool nullable = false) {
    return static_cast<const HandleType*>(check_handle(raw, HandleType::kKind, position, nullable));
  }
};

template <>
struct Argument<Tensor> : HandleArgument<Tensor, aclTensor> {
  static Tensor take(Raw raw, int position) { return check(raw, position)->value; }
};

template <>
struct Argument<Output> : HandleArgument<Output, aclTensor> {
  static Output take(Raw raw, int position) { return Output(check(raw, position)->value); }
};

template <>
struct Argument<DynamicOutput> : HandleArgument<DynamicOutput, aclTensor> {
  static DynamicOutput take(Raw raw, int position);
};

template <>
struct Argument<Scalar> : HandleArgument<Scalar, aclScalar> {
  static Scalar take(Raw raw, int position) { return check(raw, position)->value; }
};

template <>
struct Argument<IntArray> : HandleArgument<IntArray, aclIntArray> {
  static IntArray take(Raw raw, int position) { return check(raw, position)->value; }
};

template <std::size_t N>
struct Argument<std::array<bool, N>> : HandleArgument<std::array<bool, N>, aclBoolArray> {
  static std::array<bool, N> take(const aclBoolArray* raw, int position) {
    const auto& value = Argument::check(raw, position)->value;
    if (value.size() != N) {
      throw Error(kOperatorRefused, "argument " + std::to_string(position) + " is not of length " + std::to_string(N));
    }
    std::array<bool, N> flags;
    std::copy(value.begin(), value.end(), flags.begin());
    return flags;
  }
};

template <>
struct Argument<TensorList> : HandleArgument<TensorList, aclTensorList> {
  static TensorList take(Raw raw, int position) {
    TensorList tensors;
    for (const auto& tensor : check(raw, position)->value) tensors.push_back(tensor ? tensor->value : Tensor());
    return tensors;
  }
};

template <>
struct Argument<OutputList> : HandleArgument<OutputList, aclTensorList> {
  static OutputList take(Raw raw, int position) {
    OutputList outputs;
    for (const auto& tensor : check(raw, position)->value) outputs.emplace_back(tensor->value);
    return outputs;
  }
};

template <>
struct Argument<std::vector<Scalar>> : HandleArgument<std::vector<Scalar>, aclScalarList> {
  static std::vector<Scalar> take(Raw raw, int position) {
    std::vector<Scalar> scalars;
    for (const auto& scalar : check(raw, position)->value) scalars.push_back(scalar->value);
    return scalars;
  }
};

// Handles that may be null.
template <class T>
struct Argument<std::optional<T>> {
  using Raw = typename Argument<T>::Raw;
  static std::optional<T> take(Raw raw, int position) {
    if (!Argument<T>::check(raw, position, true)) return std::nullopt;
    return Argument<T>::take(raw, position);
  }
};

// Types travel as aclDataType.
template <>
struct Argument<at::ScalarType> {
  using Raw = aclDataType;
  static at::ScalarType take(Raw raw, int) { return scalar_type(raw); }
};

template <class T>
struct PlainArgument {
  using Raw = T;
  static T take(Raw raw, int) { return raw; }
};

template <> struct Argument<bool> : PlainArgument<bool> {};
template <> struct Argument<std::int8_t> : PlainArgument<std::int8_t> {};
template <> struct Argument<std::int64_t> : PlainArgument<std::int64_t> {};
template <> struct Argument<std::uint64_t> : PlainArgument<std::uint64_t> {};
template <> struct Argument<float> : PlainArgument<float> {};
template <> struct Argument<double> : PlainArgument<double> {};

template <>
struct Argument<std::string> {
  using Raw = const char*;
  static std::string take(Raw raw, int) { return raw ? raw : ""; }
};

// Throws if the pointers cannot be the last two arguments of a GetWorkspaceSize call.
void check_results(const std::uint64_t* workspace_size, aclOpExecutor* const* executor, int position);

// Counts the call, and throws if the operator was chosen to fail.
void enter(const std::string& name);

// The first call of all operators with these parameters. Most of the code is here, so that it is compiled once for
// each list of parameters and not once for each operator.
template <class... Parameters>
struct FirstCall {
  using Values = std::tuple<Parameters...>;
  using Run = void (*)(const Values&);

  static aclError bind(const std::string& name, Run run, typename Argument<Parameters>::Raw... arguments,
                       std::uint64_t* workspace_size, aclOpExecutor** executor) {
    return guarded([&] {
      try {
        auto values = [&]<std::size_t... I>(std::index_sequence<I...>) {
          return Values{Argument<Parameters>::take(arguments, I + 1)...};
        }(std::index_sequence_for<Parameters...>{});
        check_results(workspace_size, executor, sizeof...(Parameters));
        enter(name);
        constexpr bool kBlocking = (std::is_same_v<Parameters, DynamicOutput> || ...);
        *executor = add_executor(name, [run, values = std::move(values)] { run(values); }, kBlocking);
        *workspace_size = 0;
      } catch (const Error& error) {
        throw Error(error.code(), name + ": " + error.what());
      }
    });
  }
};

template <class Body, class Signature>
struct Operator;

template <class Body, class... Parameters>
struct Operator<Body, void (Body::*)(Parameters...) const> {
  static inline std::string name;

  // The C function aclnnXGetWorkspaceSize.
  static aclError prepare(typename Argument<std::decay_t<Parameters>>::Raw... arguments,
                          std::uint64_t* workspace_size, aclOpExecutor** executor) {
    return FirstCall<std::decay_t<Parameters>...>::bind(
        name, [](const auto& values) { std::apply(Body{}, values); }, arguments..., workspace_size, executor);
  }
};

// The operators by name.
class Table {
 public:
  // The operator has to be a lambda without captures, since its type alone stands for it.
  template <class Body>
  void add(const char* name, Body) {
    static_assert(std::is_empty_v<Body>);
    using Entry = Operator<Body, decltype(&Body::operator())>;
    if (!Entry::name.empty()) throw std::logic_error(std::string(name) + " shares its code with " + Entry::name);
    Entry::name = name;
    if (!entries_.emplace(name, reinterpret_cast<void*>(&Entry::prepare)).second) {
      throw std::logic_error(std::string(name) + " is declared twice");
    }
  }

  void* find(std::string_view name) const {
    const auto found = entries_.find(name);
    return found == entries_.end() ? nullptr : found->second;
  }

 private:
  std::unordered_map<std::string_view, void*> entries_;
};

// One function for each file of operators.
void add_pointwise(Table&);
void add_comparisons(Table&);
void add_activations(Table&);
void add_attention(Table&);
void add_reductions(Table&);
void add_matmul(Table&);
void add_convolution(Table&);
void add_pooling(Table&);
void add_normalization(Table&);
void add_losses(Table&);
void add_indexing(Table&);
void add_shapes(Table&);
void add_random(Table&);
void add_foreach(Table&);
void add_optimizers(Table&);

// For the generated symbols: the GetWorkspaceSize function of the name, or the given one if there is no such operator.
void* resolve(const char* name, void* missing) noexcept;
int missing_operator(const char* name) noexcept;
int launch(const aclOpExecutor* executor, aclrtStream stream) noexcept;

}  // namespace simcann
