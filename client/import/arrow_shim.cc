/* Parquet through Arrow (arrow_shim.h): the only C++ here. One thread.
 *
 * A file is read batch by batch with the wanted columns only, so memory is bounded by a row group. Exceptions and statuses end as
 * texts at the edge of this file. */
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <arrow/api.h>
#include <arrow/io/api.h>
#include <arrow/util/decimal.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/writer.h>

#include "client/import/arrow_shim.h"

namespace {

/* In the order of enum column. */
enum { TIME, CLOCK, OPEN, HIGH, LOW, CLOSE, VOLUME, SYMBOL };

enum shim_result fail(char *error, const std::string &text)
{
	std::snprintf(error, SHIM_ERROR_MAX, "%s", text.c_str());
	for (char *p = error; *p; p++)
		if (*p < ' ' || *p > '~')
			*p = '?';
	return SHIM_ERROR;
}

template <class Array> double number(const arrow::Array &a, int64_t i)
{
	return static_cast<double>(static_cast<const Array &>(a).Value(i));
}

using numbers = double (*)(const arrow::Array &, int64_t);

double decimal(const arrow::Array &a, int64_t i)
{
	const auto &d = static_cast<const arrow::Decimal128Array &>(a);
	return arrow::Decimal128(d.GetValue(i)).ToDouble(static_cast<const arrow::Decimal128Type &>(*a.type()).scale());
}

/* How values of a type become doubles; nullptr: not at all. */
numbers numbers_of(const arrow::DataType &type)
{
	switch (type.id()) {
	case arrow::Type::DOUBLE: return number<arrow::DoubleArray>;
	case arrow::Type::FLOAT: return number<arrow::FloatArray>;
	case arrow::Type::INT64: return number<arrow::Int64Array>;
	case arrow::Type::UINT64: return number<arrow::UInt64Array>;
	case arrow::Type::INT32: return number<arrow::Int32Array>;
	case arrow::Type::UINT32: return number<arrow::UInt32Array>;
	case arrow::Type::INT16: return number<arrow::Int16Array>;
	case arrow::Type::UINT16: return number<arrow::UInt16Array>;
	case arrow::Type::DECIMAL128: return decimal;
	default: return nullptr;
	}
}

bool text_of(const arrow::Array &a, int64_t i, const char **p, size_t *n)
{
	if (a.type_id() == arrow::Type::STRING) {
		auto v = static_cast<const arrow::StringArray &>(a).GetView(i);
		*p = v.data();
		*n = v.size();
		return true;
	}
	if (a.type_id() == arrow::Type::LARGE_STRING) {
		auto v = static_cast<const arrow::LargeStringArray &>(a).GetView(i);
		*p = v.data();
		*n = v.size();
		return true;
	}
	if (a.type_id() == arrow::Type::DICTIONARY) {
		const auto &d = static_cast<const arrow::DictionaryArray &>(a);
		return text_of(*d.dictionary(), d.GetValueIndex(i), p, n);
	}
	return false;
}

void scaled(struct shim_row *r, int64_t v, int64_t ns)
{
	r->kind = v > std::numeric_limits<int64_t>::max() / ns || v < std::numeric_limits<int64_t>::min() / ns ? SHIM_RANGE : SHIM_NS;
	r->time = r->kind == SHIM_NS ? v * ns : 0;
}

int64_t unit_ns(arrow::TimeUnit::type unit)
{
	switch (unit) {
	case arrow::TimeUnit::SECOND: return 1000000000;
	case arrow::TimeUnit::MILLI: return 1000000;
	case arrow::TimeUnit::MICRO: return 1000;
	default: return 1;
	}
}

/* false: the type is no time. */
bool time_of(const arrow::Array &a, int64_t i, struct shim_row *r)
{
	if (a.IsNull(i)) {
		r->kind = SHIM_MISSING;
		return true;
	}
	switch (a.type_id()) {
	case arrow::Type::TIMESTAMP:
		scaled(r, static_cast<const arrow::TimestampArray &>(a).Value(i),
		       unit_ns(static_cast<const arrow::TimestampType &>(*a.type()).unit()));
		return true;
	case arrow::Type::DATE32:
		scaled(r, static_cast<const arrow::Date32Array &>(a).Value(i), INT64_C(86400000000000));
		return true;
	case arrow::Type::DATE64:
		scaled(r, static_cast<const arrow::Date64Array &>(a).Value(i), 1000000);
		return true;
	case arrow::Type::INT64:
		r->kind = SHIM_NUMBER;
		r->time = static_cast<const arrow::Int64Array &>(a).Value(i);
		return true;
	case arrow::Type::INT32:
		r->kind = SHIM_NUMBER;
		r->time = static_cast<const arrow::Int32Array &>(a).Value(i);
		return true;
	case arrow::Type::UINT64: {
		uint64_t v = static_cast<const arrow::UInt64Array &>(a).Value(i);
		r->kind = v > INT64_MAX ? SHIM_RANGE : SHIM_NUMBER;
		r->time = static_cast<int64_t>(v);
		return true;
	}
	default:
		r->kind = SHIM_TEXT;
		return text_of(a, i, &r->text, &r->text_len);
	}
}

struct reading {
	const struct shim_reader *r;
	std::vector<int> place;          /* of each enum column in the batch, -1 */
	int64_t rows = 0, of = 0;
};

enum shim_result take_batch(struct reading &x, const arrow::RecordBatch &batch, char *error)
{
	numbers as_number[5] = {};

	for (int k = 0; k < 5; k++) {
		if (x.place[OPEN + k] < 0)
			continue;
		as_number[k] = numbers_of(*batch.column(x.place[OPEN + k])->type());
		if (!as_number[k])
			return fail(error, "column " + batch.column_name(x.place[OPEN + k]) + " has the type " +
					       batch.column(x.place[OPEN + k])->type()->ToString() + " and not numbers");
	}
	for (int64_t i = 0; i < batch.num_rows(); i++) {
		struct shim_row row = {};
		row.row = ++x.rows;
		if (!time_of(*batch.column(x.place[TIME]), i, &row))
			return fail(error, "column " + batch.column_name(x.place[TIME]) + " has the type " +
					       batch.column(x.place[TIME])->type()->ToString() + " and not times");
		for (int k = 0; k < 5; k++) {
			if (!as_number[k])
				continue;
			const arrow::Array &a = *batch.column(x.place[OPEN + k]);
			row.value[k] = a.IsNull(i) ? std::nan("") : as_number[k](a, i);
		}
		if (x.place[SYMBOL] >= 0) {
			const arrow::Array &a = *batch.column(x.place[SYMBOL]);
			row.symbol = "";
			if (!a.IsNull(i))
				text_of(a, i, &row.symbol, &row.symbol_len);
		}
		if (x.r->row(x.r->arg, &row))
			return SHIM_STOPPED;
	}
	return x.r->progress(x.r->arg, x.rows, x.of) ? SHIM_STOPPED : SHIM_OK;
}

enum shim_result choose(struct reading &x, const arrow::Schema &schema, std::vector<int> *wanted)
{
	std::vector<const char *> name;
	std::vector<int> at(SHIM_COLUMNS, -1);

	for (const auto &field : schema.fields())
		name.push_back(field->name().c_str());
	if (x.r->columns(x.r->arg, name.data(), static_cast<int>(name.size()), at.data()))
		return SHIM_STOPPED;
	x.place.assign(SHIM_COLUMNS, -1);
	for (int field = 0; field < static_cast<int>(name.size()); field++)
		for (int k = 0; k < SHIM_COLUMNS; k++)
			if (at[k] == field) {
				if (wanted->empty() || wanted->back() != field)
					wanted->push_back(field);
				x.place[k] = static_cast<int>(wanted->size()) - 1;
			}
	return SHIM_OK;
}

enum shim_result read_file(const char *path, const struct shim_reader *r, char *error)
{
	auto file = arrow::io::ReadableFile::Open(path);
	if (!file.ok())
		return fail(error, file.status().message());
	parquet::arrow::FileReaderBuilder builder;
	auto opened = builder.Open(*file);
	if (!opened.ok())
		return fail(error, "the Parquet file is damaged: " + opened.message());
	std::unique_ptr<parquet::arrow::FileReader> reader;
	auto built = builder.Build(&reader);
	if (!built.ok())
		return fail(error, "the Parquet file is damaged: " + built.message());
	std::shared_ptr<arrow::Schema> schema;
	auto known = reader->GetSchema(&schema);
	if (!known.ok())
		return fail(error, "the Parquet file is damaged: " + known.message());

	struct reading x;
	std::vector<int> wanted, leaves, groups;
	x.r = r;
	x.of = reader->parquet_reader()->metadata()->num_rows();
	enum shim_result result = choose(x, *schema, &wanted);
	if (result != SHIM_OK)
		return result;
	if (reader->parquet_reader()->metadata()->num_columns() != schema->num_fields())
		return fail(error, "the Parquet file has nested columns; it needs flat ones");
	for (int g = 0; g < reader->num_row_groups(); g++)
		groups.push_back(g);
	auto batches = reader->GetRecordBatchReader(groups, wanted);
	if (!batches.ok())
		return fail(error, "the Parquet file is damaged: " + batches.status().message());
	for (;;) {
		auto batch = (*batches)->Next();
		if (!batch.ok())
			return fail(error, "the Parquet file is damaged: " + batch.status().message());
		if (!*batch)
			return SHIM_OK;
		result = take_batch(x, **batch, error);
		if (result != SHIM_OK)
			return result;
	}
}

template <class T> std::shared_ptr<arrow::Buffer> borrow(const T *p, int64_t n)
{
	return std::make_shared<arrow::Buffer>(reinterpret_cast<const uint8_t *>(p), n * static_cast<int64_t>(sizeof(T)));
}

enum shim_result write_file(const char *path, int64_t bars, const int64_t *ts, const double *const value[4], const double *volume,
			    const char *(*symbol)(const void *arg, int64_t bar), const void *arg, char *error)
{
	static const char *const name[] = {"open", "high", "low", "close"};
	auto utc = arrow::timestamp(arrow::TimeUnit::NANO, "UTC");
	std::vector<std::shared_ptr<arrow::Field>> field = {arrow::field("ts", utc, false)};
	std::vector<std::shared_ptr<arrow::Array>> column = {std::make_shared<arrow::TimestampArray>(utc, bars, borrow(ts, bars))};

	for (int k = 0; k < 4; k++) {
		field.push_back(arrow::field(name[k], arrow::float64(), false));
		column.push_back(std::make_shared<arrow::DoubleArray>(bars, borrow(value[k], bars)));
	}
	if (volume) {
		field.push_back(arrow::field("volume", arrow::float64(), false));
		column.push_back(std::make_shared<arrow::DoubleArray>(bars, borrow(volume, bars)));
	}
	if (symbol) {
		arrow::StringBuilder text;
		std::shared_ptr<arrow::Array> all;
		arrow::Status added;
		for (int64_t i = 0; added.ok() && i < bars; i++)
			added = text.Append(symbol(arg, i));
		if (added.ok())
			added = text.Finish(&all);
		if (!added.ok())
			return fail(error, added.message());
		field.push_back(arrow::field("symbol", arrow::utf8(), false));
		column.push_back(all);
	}
	auto out = arrow::io::FileOutputStream::Open(path);
	if (!out.ok())
		return fail(error, out.status().message());
	auto status = parquet::arrow::WriteTable(*arrow::Table::Make(arrow::schema(field), column), arrow::default_memory_pool(), *out,
						 1 << 20);
	if (status.ok())
		status = (*out)->Close();
	return status.ok() ? SHIM_OK : fail(error, status.message());
}

} // namespace

enum shim_result shim_read(const char *path, const struct shim_reader *r, char error[SHIM_ERROR_MAX])
{
	try {
		return read_file(path, r, error);
	} catch (const std::exception &e) {
		return fail(error, std::string("the Parquet file is damaged: ") + e.what());
	}
}

enum shim_result shim_write(const char *path, int64_t bars, const int64_t *ts, const double *const value[4], const double *volume,
			    const char *(*symbol)(const void *arg, int64_t bar), const void *arg, char error[SHIM_ERROR_MAX])
{
	try {
		return write_file(path, bars, ts, value, volume, symbol, arg, error);
	} catch (const std::exception &e) {
		return fail(error, e.what());
	}
}
