#include "settings.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "error.h"

namespace simcann {
namespace {

constexpr int kMostDevices = 16;

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

[[noreturn]] void reject(const char* name, std::string_view value, const std::string& wanted) {
  throw Error(ACL_ERROR_INVALID_PARAM,
              std::string(name) + "='" + std::string(value) + "': expected " + wanted);
}

template <class Number>
std::optional<Number> parse(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

template <class Number>
Number number_in(const char* name, Number lowest, Number highest, Number otherwise) {
  const std::string_view text = variable(name);
  if (text.empty()) return otherwise;
  const auto number = parse<Number>(text);
  if (!number || *number < lowest || *number > highest) {
    reject(name, text, "a number from " + std::to_string(lowest) + " to " + std::to_string(highest));
  }
  return *number;
}

std::optional<Nth> nth(const char* name) {
  const std::string_view text = variable(name);
  if (text.empty()) return std::nullopt;
  const auto colon = text.find(':');
  const auto number = colon == text.npos ? std::optional<std::uint64_t>(1)
                                         : parse<std::uint64_t>(text.substr(colon + 1));
  if (!number || *number == 0 || colon == 0) reject(name, text, "NAME or NAME:N, N counted from 1");
  return Nth{std::string(text.substr(0, colon)), *number};
}

std::optional<NthOnDevice> nth_on_device(const char* name) {
  const auto event = nth(name);
  if (!event) return std::nullopt;
  const auto device = parse<int>(event->name);
  if (!device) reject(name, variable(name), "DEVICE or DEVICE:N, N counted from 1");
  return NthOnDevice{*device, event->number};
}

Settings read_environment() {
  Settings settings;
  settings.devices = number_in<int>("SIMCANN_DEVICES", 0, kMostDevices, settings.devices);
  if (const auto chip = variable("SIMCANN_CHIP"); !chip.empty()) settings.chip = chip;
  settings.memory_bytes =
      number_in<std::size_t>("SIMCANN_MEMORY_MB", 1, std::size_t{1} << 24, settings.memory_bytes >> 20) << 20;
  settings.collective_timeout_s =
      number_in<int>("SIMCANN_COLLECTIVE_TIMEOUT", 1, 1 << 20, static_cast<int>(settings.collective_timeout_s));
  settings.counters_folder = variable("SIMCANN_COUNTERS");
  settings.failing_operator = nth("SIMCANN_FAIL_OPERATOR");
  settings.die_in_collective = nth_on_device("SIMCANN_DIE_IN_COLLECTIVE");
  settings.hang_in_collective = nth_on_device("SIMCANN_HANG_IN_COLLECTIVE");
  settings.log = number_in<int>("SIMCANN_LOG", 0, 1, 0) == 1;
  return settings;
}

}  // namespace

bool Settings::saturates() const {
  return chip.rfind("Ascend910", 0) == 0 && chip.rfind("Ascend910B", 0) != 0 && chip.rfind("Ascend910_", 0) != 0;
}

const Settings& settings() {
  static const Settings from_environment = read_environment();
  return from_environment;
}

}  // namespace simcann
