#include "core/checkpoint/torch_file/torch_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/torch_file/torch_value.hpp"
#include "core/errors.hpp"
#include "tests/core/checkpoint/torch_file/zip_writer.hpp"
#include "tests/core/data/temporary_folder.hpp"

namespace capstan {
namespace {

using test::little;
using test::TemporaryFolder;
using test::ZipWriter;
using testing::HasSubstr;
using testing::StartsWith;

std::string fault_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const RuntimeFault& fault) {
    return fault.what();
  }
  return "";
}

std::string text_of(std::string_view text) {
  return "X" + little(static_cast<std::uint32_t>(text.size())) + std::string(text);
}

/// The instructions of a tensor: storage `key` of that type and size; offset, shape and strides as instructions.
std::string tensor(const std::string& type, const std::string& elements, const std::string& offset,
                   const std::string& shape, const std::string& strides, const std::string& key = "0") {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + text_of("storage") + "ctorch\n" + type + "\n" + text_of(key) +
         text_of("cpu") + elements + "tQ" + offset + shape + strides + "\x89" + "ccollections\nOrderedDict\n)RtR";
}

std::string integer(std::int32_t value) { return "J" + little(value); }
/// 2^40.
const std::string kHuge = std::string("\x8a\x06\x00\x00\x00\x00\x00\x01", 8);
const std::string kBegin = "\x80\x02";
/// 0, 1, .. 5 as float32.
const std::string kSix = little(0.f) + little(1.f) + little(2.f) + little(3.f) + little(4.f) + little(5.f);

/// A zip archive as torch.save makes it, of one pickle and storage 0.
std::string archive(const std::string& pickle, const std::string& storage = kSix) {
  ZipWriter zip;
  zip.add("file/data.pkl", kBegin + pickle + ".");
  zip.add("file/byteorder", "little");
  zip.add("file/data/0", storage);
  return zip.finished();
}

std::string fault_of_file(const std::string& content) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a.pt", content);
  const std::string fault = fault_of([&] {
    const TorchFile file(path);
    file.tensor(file.pickle().root(), "value");
    file.verify(file.pickle().root(), "value");
  });
  EXPECT_THAT(fault, StartsWith("checkpoint file '" + path + "': ")) << fault;
  return fault;
}

TEST(TorchFile, MapsATensorWithItsOffsetShapeAndStrides) {
  const TemporaryFolder folder;
  // Two columns of a matrix of 2 x 3.
  const TorchFile file(folder.write(
      "a.pt", archive(tensor("FloatStorage", integer(6), integer(1), "K\x02K\x02\x86", "K\x03K\x01\x86"))));
  const at::Tensor found = file.tensor(file.pickle().root(), "value");
  ASSERT_EQ(found.sizes(), (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(found[0][0].item<float>(), 1);
  EXPECT_EQ(found[0][1].item<float>(), 2);
  EXPECT_EQ(found[1][1].item<float>(), 5);
  file.verify(file.pickle().root(), "value");
}

TEST(TorchFile, ReadsTheStreamOfBefore16) {
  const TemporaryFolder folder;
  const std::string magic = kBegin + "\x8a\x0a" + "l\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19" + ".";
  const std::string facts = kBegin + "}" + text_of("little_endian") + "\x88s.";
  const std::string object = kBegin + tensor("FloatStorage", integer(6), "K\x02", "K\x03\x85", "K\x01\x85") + ".";
  const std::string keys = kBegin + "](" + text_of("0") + "e.";
  const std::string stream = magic + kBegin + "M\xe9\x03." + facts + object + keys + little<std::int64_t>(6) + kSix;
  const TorchFile file(folder.write("a.pt", stream));
  const at::Tensor found = file.tensor(file.pickle().root(), "value");
  ASSERT_EQ(found.sizes(), (std::vector<std::int64_t>{3}));
  EXPECT_EQ(found[2].item<float>(), 4);

  EXPECT_THAT(fault_of_file(stream.substr(0, stream.size() - 1)), HasSubstr("it ends before its storages do"));
  EXPECT_THAT(fault_of_file(stream + "x"), HasSubstr("something was added to it"));
  EXPECT_THAT(fault_of_file(kBegin + "K\x01."), HasSubstr("it begins as a pickle of something else."));
}

TEST(TorchFile, RefusesATensorThatItsStorageDoesNotHold) {
  const auto fault = [](const std::string& elements, const std::string& offset, const std::string& shape,
                        const std::string& strides) {
    return fault_of_file(archive(tensor("FloatStorage", elements, offset, shape, strides)));
  };
  EXPECT_THAT(fault(integer(6), "K\x01", "K\x06\x85", "K\x01\x85"),
              HasSubstr("value: 6 elements from 1 on are beyond its storage, which has 6."));
  EXPECT_THAT(fault(integer(6), std::string("K\x00", 2), kHuge + "\x85", std::string("K\x00", 2) + "\x85"),
              HasSubstr("value: 1099511627776 elements from 0 on are beyond its storage, which has 6."));
  EXPECT_THAT(fault(integer(6), std::string("K\x00", 2), "(" + kHuge + kHuge + "K\x02t", "(K\x01K\x01K\x01t"),
              HasSubstr("value: its shape is too large."));
  EXPECT_THAT(fault(integer(6), integer(-8), "K\x06\x85", "K\x01\x85"),
              HasSubstr("value: its offset, shape or strides are not those of a tensor."));
  EXPECT_THAT(fault(kHuge, std::string("K\x00", 2), "K\x06\x85", "K\x01\x85"),
              HasSubstr("value: the pickle gives its storage 1099511627776 elements, and the file 24 bytes."));
  EXPECT_THAT(fault_of_file(archive(
                  tensor("ComplexFloatStorage", integer(3), std::string("K\x00", 2), "K\x03\x85", "K\x01\x85"))),
              HasSubstr("value: its values are of torch.ComplexFloatStorage, and floating-point or whole numbers"));
  EXPECT_THAT(fault_of_file(archive(tensor("FloatStorage", integer(6), std::string("K\x00", 2), "K\x06\x85",
                                           "K\x01\x85", "../../../../etc/passwd"))),
              HasSubstr("value: its storage '../../../../etc/passwd' is not in the file."));
  EXPECT_THAT(fault_of_file(archive("K\x01")), HasSubstr("value: it is not a tensor."));
}

TEST(TorchFile, RefusesAFileThatIsNotWhole) {
  const std::string whole =
      archive(tensor("FloatStorage", integer(6), std::string("K\x00", 2), "K\x06\x85", "K\x01\x85"));
  std::string flipped = whole;
  flipped[flipped.find(kSix) + 5] ^= 1;
  EXPECT_THAT(fault_of_file(flipped), HasSubstr("value: it is damaged: its storage does not fit its checksum."));
  flipped = whole;
  flipped[flipped.find("storage")] = 'S';
  EXPECT_THAT(fault_of_file(flipped), HasSubstr("its record 'data.pkl' does not fit its checksum."));
  EXPECT_THAT(fault_of_file(whole.substr(0, whole.size() / 2)),
              HasSubstr("it is not a file of torch.save, or was cut off"));
  EXPECT_THAT(fault_of_file(""), HasSubstr("it is empty: it was cut off."));
  ZipWriter other;
  other.add("file/x.pkl", "");
  EXPECT_THAT(fault_of_file(other.finished()), HasSubstr("it has no record 'data.pkl'."));
  other.add("file/data.pkl", kBegin + "N.");
  other.add("other/data.pkl", kBegin + "N.");
  EXPECT_THAT(fault_of_file(other.finished()), HasSubstr("it has two records 'data.pkl'"));
  ZipWriter big;
  big.add("file/data.pkl", kBegin + "N.");
  big.add("file/byteorder", "big");
  EXPECT_THAT(fault_of_file(big.finished()), HasSubstr("it was written on a big-endian machine."));
}

ZipDirectory directory_of(const std::string& bytes) {
  return ZipDirectory(std::as_bytes(std::span(bytes.data(), bytes.size())), "file");
}

TEST(ZipDirectory, FindsStoredRecordsWithOffsetsOf32And64Bits) {
  for (const bool in_64_bits : {false, true}) {
    ZipWriter zip{.in_64_bits = in_64_bits};
    zip.add("a/first", "one");
    zip.add("a/second", "zwei");
    const std::string bytes = zip.finished();
    const ZipDirectory directory = directory_of(bytes);
    ASSERT_NE(directory.find("a/second"), nullptr);
    const ZipRecord& record = *directory.find("a/second");
    EXPECT_EQ(bytes.substr(record.begin, record.size), "zwei");
    EXPECT_EQ(record.crc32, test::crc32_of("zwei"));
    EXPECT_EQ(directory.find("a/third"), nullptr);
  }
}

TEST(ZipDirectory, RefusesWhatTorchDoesNotWrite) {
  const auto fault = [](const ZipWriter& zip) { return fault_of([&] { directory_of(zip.finished()); }); };
  ZipWriter twice;
  twice.add("a", "1");
  twice.add("a", "2");
  EXPECT_EQ(fault(twice), "file: it has two records 'a', and torch.save writes one.");
  ZipWriter deflated{.method = 8};
  deflated.add("a", "1");
  EXPECT_EQ(fault(deflated),
            "file: its record 'a' is compressed, and torch.save stores its records as they are. Save the file again.");
  ZipWriter encrypted{.flags = 1};
  encrypted.add("a", "1");
  EXPECT_EQ(fault(encrypted), "file: its record 'a' is encrypted, which torch.save does not do.");
  ZipWriter overlapping;
  overlapping.add("a", "12345678901234567890123456789012345678901234567890");
  const std::string first = overlapping.directory;
  overlapping.directory += first;
  overlapping.directory[first.size() + 46] = 'b';
  overlapping.count = 2;
  EXPECT_EQ(fault(overlapping), "file: its record 'b' overlaps another one.");
  ZipWriter beyond;
  beyond.add("a", "1");
  beyond.directory[42] = 5;
  EXPECT_EQ(fault(beyond), "file: its record 'a' does not stand where the zip directory says.");
  beyond.directory[45] = 127;
  EXPECT_EQ(fault(beyond), "file: its zip directory is damaged: it leads beyond the end of the file.");
}

Pickle pickle_of(const std::string& bytes) {
  return Pickle(std::as_bytes(std::span(bytes.data(), bytes.size())), "file");
}

std::string fault_of_pickle(const std::string& instructions) {
  return fault_of([&] { pickle_of(kBegin + instructions + "."); });
}

TEST(Pickle, GivesNamesOfWhatItDoesNotKnowAndCallsNothing) {
  const std::string bytes = kBegin + "cos\nsystem\n" + text_of("touch PICKLE_WAS_RUN") + "\x85R.";
  const Pickle called = pickle_of(bytes);
  EXPECT_EQ(called.kind(called.root()), Pickle::Kind::kOpaque);
  EXPECT_EQ(called.text(called.root()), "os.system");
  // A call of what a call gave, with items set and members built.
  const std::string deeper = kBegin + "cbuiltins\ngetattr\n)R)R}bK\x01K\x02s.";
  const Pickle object = pickle_of(deeper);
  EXPECT_EQ(object.text(object.root()), "builtins.getattr");
  EXPECT_EQ(fault_of_pickle("ios\nsystem\n"),
            "file: its pickle has the instruction 105, which torch.save does not write, at byte 3.");
}

TEST(Pickle, ReadsPlainDataOfProtocols2And4) {
  const std::string bytes = kBegin + "ccollections\nOrderedDict\n)R(" + text_of("a") + "J\xfe\xff\xff\xff" +
                            text_of("b") + std::string("G\x3f\xf8\0\0\0\0\0\0", 9) + text_of("c") + "\x88u.";
  const Pickle dict = pickle_of(bytes);
  const auto& items = dict.items(dict.root());
  ASSERT_EQ(items.size(), 6u);
  EXPECT_EQ(dict.integer(items[1]), -2);
  EXPECT_EQ(dict.real(items[3]), 1.5);
  EXPECT_TRUE(dict.boolean(items[5]));
  // 2^70, and -2^70.
  const std::string large = kBegin + std::string("\x8a\x09\0\0\0\0\0\0\0\0\x40", 11) + ".";
  EXPECT_EQ(pickle_of(large).text(0), "1180591620717411303424");
  const std::string negative = kBegin + std::string("\x8a\x09\0\0\0\0\0\0\0\0\xc0", 11) + ".";
  EXPECT_EQ(pickle_of(negative).text(0), "-1180591620717411303424");
  // FRAME, MEMOIZE, STACK_GLOBAL, SHORT_BINUNICODE.
  const std::string framed = std::string(
      "\x80\x04\x95\0\0\0\0\0\0\0\0\x8c\x05torch\x94\x8c\x07"
      "float16\x93.",
      30);
  const Pickle named = pickle_of(framed);
  EXPECT_EQ(named.text(named.root()), "torch.float16");
}

TEST(Pickle, TakesLittleMemoryWhateverItSays) {
  // A place of the memo that a list of as many elements would not have, tuples within each other, a tuple of itself
  // twice 64 times, and a list that holds itself.
  pickle_of(kBegin + "Nr\xff\xff\xff\xff.");
  pickle_of(kBegin + "N" + std::string(100'000, '\x85') + ".");
  std::string doubled = kBegin + ")q";
  doubled += '\0';
  for (int i = 0; i < 64; ++i) doubled += std::string("h\0h\0\x86q\0", 7);
  pickle_of(doubled + ".");
  const std::string cyclic = kBegin + std::string("]q\0h\0a.", 7);
  const Pickle cycle = pickle_of(cyclic);
  EXPECT_EQ(cycle.items(cycle.root()).front(), cycle.root());
  // torch.Size of one long list, again and again.
  std::string copied = "(";
  for (int i = 0; i < 20'000; ++i) copied += "N";
  copied += std::string("tq\0", 3);
  for (int i = 0; i < 1'000; ++i) copied += std::string("ctorch\nSize\nh\0\x85R", 16);
  EXPECT_THAT(fault_of_pickle(copied), HasSubstr("has lists of more than 10 million values"));
  // A record whose members are its own, again and again.
  std::string own = "cdeepspeed.runtime.fp16.loss_scaler\nLossScaler\n)\x81q";
  own += std::string("\0(NNu", 5);
  for (int i = 0; i < 40; ++i) own += std::string("h\0b", 3);
  EXPECT_THAT(fault_of_pickle(own), HasSubstr("has lists of more than 10 million values"));
  // A name of 1801 bytes, again and again.
  std::string named = "X" + std::string("\x84\3\0\0", 4) + std::string(900, 'a') + std::string("q\0", 2);
  for (int i = 0; i < 40'000; ++i) named += std::string("h\0h\0\x93", 5);
  EXPECT_THAT(fault_of_pickle(named), HasSubstr("has names of more than 64 MiB"));
}

TEST(Pickle, NamesTheByteOfWhatDoesNotFitTogether) {
  EXPECT_EQ(fault_of([] {
              pickle_of(kBegin +
                        "X\xff\xff\xff\xff"
                        "abc");
            }),
            "file: its pickle ends within an instruction, at byte 7.");
  EXPECT_THAT(fault_of_pickle("a"), HasSubstr("its pickle takes a value that is not there, at byte 3."));
  EXPECT_THAT(fault_of_pickle("N(a"), HasSubstr("takes a value that is not there"));
  EXPECT_THAT(fault_of_pickle("t"), HasSubstr("takes values back to a mark that is not there"));
  EXPECT_THAT(fault_of_pickle("h\x07"), HasSubstr("refers to a value that it has not kept"));
  EXPECT_THAT(fault_of_pickle("NNa"), HasSubstr("appends to a value that is not a list"));
  EXPECT_THAT(fault_of_pickle("}(NNNu"), HasSubstr("sets items of a value that is not a dict"));
  EXPECT_THAT(fault_of_pickle("NQ"), HasSubstr("refers to something else than a storage of torch"));
  EXPECT_THAT(fault_of_pickle("cname"), HasSubstr("has a name without an end"));
  EXPECT_THAT(fault_of([] { pickle_of("\x80\x09N."); }), HasSubstr("is of a protocol that is not known"));
}

}  // namespace
}  // namespace capstan
