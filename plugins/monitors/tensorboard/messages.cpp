#include "messages.hpp"

#include <protozero/pbf_writer.hpp>
#include <type_traits>

namespace capstan::monitors {
namespace {

using protozero::pbf_writer;

/// Field numbers.
namespace event {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace session_log {
constexpr int kStatus = 1;
constexpr int kStart = 1;  // a value of kStatus
}  // namespace session_log
namespace value {
constexpr int kTag = 1, kSimpleValue = 2, kHistogram = 5, kTensor = 8, kMetadata = 9;
}
namespace metadata {
constexpr int kPluginData = 1, kDataClass = 4;
constexpr int kPluginName = 1, kContent = 2;  // fields of kPluginData
constexpr int kTensorClass = 2;               // a value of kDataClass
}  // namespace metadata
namespace tensor {
constexpr int kDtype = 1, kShape = 2, kString = 8;
constexpr int kDtypeString = 7;        // a value of kDtype
constexpr int kDim = 2, kDimSize = 1;  // fields of kShape
}  // namespace tensor
namespace histogram {
constexpr int kMin = 1, kMax = 2, kNum = 3, kSum = 4, kSumSquares = 5, kLimits = 6, kCounts = 7;
}
namespace hparams {
constexpr int kSessionStart = 3, kSessionEnd = 4;            // fields of the plugin's data
constexpr int kHParams = 1, kGroupName = 4, kStartTime = 5;  // fields of a session's start
constexpr int kEndTime = 2;                                  // a field of a session's end
constexpr int kMapKey = 1, kMapValue = 2;                    // fields of an entry of kHParams
constexpr int kNumber = 2, kText = 3, kBoolean = 4;          // fields of google.protobuf.Value
}  // namespace hparams

/// An Event with one summary value, which `fill` completes.
template <class Fill>
std::string summary_event(const Moment& moment, std::string_view tag, Fill&& fill) {
  std::string bytes;
  pbf_writer writer(bytes);
  writer.add_double(event::kWallTime, moment.wall_time);
  writer.add_int64(event::kStep, moment.step);
  pbf_writer summary(writer, event::kSummary);
  pbf_writer entry(summary, 1);
  entry.add_string(value::kTag, tag.data(), tag.size());
  fill(entry);
  entry.commit();
  summary.commit();
  return bytes;
}

void add_plugin(pbf_writer& entry, const char* plugin, const std::string& content, bool tensor_class) {
  pbf_writer about(entry, value::kMetadata);
  {
    pbf_writer plugin_data(about, metadata::kPluginData);
    plugin_data.add_string(metadata::kPluginName, plugin);
    if (!content.empty()) plugin_data.add_bytes(metadata::kContent, content);
  }
  if (tensor_class) about.add_enum(metadata::kDataClass, metadata::kTensorClass);
}

void add_hparam(pbf_writer& start, const std::string& name, const HParam& given) {
  pbf_writer entry(start, hparams::kHParams);
  entry.add_string(hparams::kMapKey, name);
  pbf_writer out(entry, hparams::kMapValue);
  std::visit(
      [&](const auto& one) {
        using Type = std::decay_t<decltype(one)>;
        if constexpr (std::is_same_v<Type, bool>) {
          out.add_bool(hparams::kBoolean, one);
        } else if constexpr (std::is_same_v<Type, double>) {
          out.add_double(hparams::kNumber, one);
        } else {
          out.add_string(hparams::kText, one);
        }
      },
      given);
}

}  // namespace

std::string version_event(double wall_time) {
  std::string bytes;
  pbf_writer writer(bytes);
  writer.add_double(event::kWallTime, wall_time);
  writer.add_string(event::kFileVersion, "brain.Event:2");
  return bytes;
}

std::string restart_event(const Moment& moment) {
  std::string bytes;
  pbf_writer writer(bytes);
  writer.add_double(event::kWallTime, moment.wall_time);
  writer.add_int64(event::kStep, moment.step);
  pbf_writer log(writer, event::kSessionLog);
  log.add_enum(session_log::kStatus, session_log::kStart);
  log.commit();
  return bytes;
}

std::string scalar_event(const Moment& moment, std::string_view tag, double number) {
  return summary_event(moment, tag,
                       [&](pbf_writer& entry) { entry.add_float(value::kSimpleValue, static_cast<float>(number)); });
}

std::string text_event(const Moment& moment, std::string_view tag, std::string_view markdown) {
  return summary_event(moment, std::string(tag) + "/text_summary", [&](pbf_writer& entry) {
    add_plugin(entry, "text", "", true);
    pbf_writer out(entry, value::kTensor);
    out.add_enum(tensor::kDtype, tensor::kDtypeString);
    {
      pbf_writer shape(out, tensor::kShape);
      pbf_writer dim(shape, tensor::kDim);
      dim.add_int64(tensor::kDimSize, 1);
    }
    out.add_bytes(tensor::kString, markdown.data(), markdown.size());
  });
}

std::string histogram_event(const Moment& moment, std::string_view tag, const Histogram& counts) {
  return summary_event(moment, tag, [&](pbf_writer& entry) {
    pbf_writer out(entry, value::kHistogram);
    out.add_double(histogram::kMin, counts.min);
    out.add_double(histogram::kMax, counts.max);
    out.add_double(histogram::kNum, counts.count);
    out.add_double(histogram::kSum, counts.sum);
    out.add_double(histogram::kSumSquares, counts.sum_of_squares);
    out.add_packed_double(histogram::kLimits, counts.limits.begin(), counts.limits.end());
    out.add_packed_double(histogram::kCounts, counts.counts.begin(), counts.counts.end());
  });
}

std::string session_start_event(const Moment& moment, std::string_view group,
                                const std::vector<std::pair<std::string, HParam>>& params) {
  std::string content;
  {
    pbf_writer writer(content);
    pbf_writer start(writer, hparams::kSessionStart);
    for (const auto& [name, given] : params) add_hparam(start, name, given);
    start.add_string(hparams::kGroupName, group.data(), group.size());
    start.add_double(hparams::kStartTime, moment.wall_time);
  }
  return summary_event(moment, "_hparams_/session_start_info",
                       [&](pbf_writer& entry) { add_plugin(entry, "hparams", content, false); });
}

std::string session_end_event(const Moment& moment) {
  std::string content;
  {
    pbf_writer writer(content);
    pbf_writer end(writer, hparams::kSessionEnd);
    end.add_double(hparams::kEndTime, moment.wall_time);
  }
  return summary_event(moment, "_hparams_/session_end_info",
                       [&](pbf_writer& entry) { add_plugin(entry, "hparams", content, false); });
}

}  // namespace capstan::monitors
