/* The numbers of a shard's samples from the bytes of its members, in one call: the plain version,
 * `_plain_parts` in learn2branch/encoding.py, defines the results. No name, size or position that
 * comes from a file is trusted: what does not fit raises ValueError. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define MOST_ARRAYS 64
#define MOST_COLUMNS 32
#define MOST_TEMPORARY 24
#define MOST_EDGES ((int64_t)1 << 48)
#define ONCE 255 /* the code of a value that is stored in full */

/* --- the arrays of a shard, as they lie in its members ---------------------------------------- */

typedef struct {
    const char *name;
    const uint8_t *data; /* not aligned */
    char kind;           /* as NumPy calls it: u, i or f */
    int64_t item, count; /* bytes of a number; numbers */
    int64_t columns;     /* the first of two dimensions, or 1 */
} Array;

typedef struct {
    Array arrays[MOST_ARRAYS];
    int count;
    void *temporary[MOST_TEMPORARY];
    int taken;
} Work;

/* Add the arrays that lie in a member one after the other: {name: [kind, *shape]}. */
static int split(Work *work, PyObject *layout, const Py_buffer *member)
{
    PyObject *key, *value;
    Py_ssize_t position = 0;
    int64_t left = member->len;
    const uint8_t *data = member->buf;
    while (PyDict_Next(layout, &position, &key, &value)) {
        if (work->count == MOST_ARRAYS || !PyUnicode_Check(key) || !PyList_Check(value) ||
            PyList_GET_SIZE(value) < 2 || PyList_GET_SIZE(value) > 3 ||
            !PyUnicode_Check(PyList_GET_ITEM(value, 0)))
            return 0;
        Array *array = work->arrays + work->count++;
        const char *kind = PyUnicode_AsUTF8(PyList_GET_ITEM(value, 0));
        array->name = PyUnicode_AsUTF8(key);
        if (!array->name || !kind || strlen(kind) != 3 || !strchr("<|", kind[0]) ||
            !strchr("uif", kind[1]) || !strchr("1248", kind[2]))
            return 0;
        array->data = data;
        array->kind = kind[1];
        array->item = kind[2] - '0';
        array->count = array->columns = 1;
        for (Py_ssize_t k = 1; k < PyList_GET_SIZE(value); k++) {
            const long long size = PyLong_AsLongLong(PyList_GET_ITEM(value, k));
            if (size < 0 || size > INT32_MAX) /* also what is no whole number */
                return 0;
            if (k == 1 && PyList_GET_SIZE(value) == 3)
                array->columns = size;
            array->count *= size;
        }
        if (array->count > left / array->item)
            return 0;
        data += array->count * array->item;
        left -= array->count * array->item;
    }
    return left == 0;
}

/* Return the array of a name if it has one of some kinds and this item (0: any), else NULL. */
static const Array *find(const Work *work, const char *name, const char *kinds, int64_t item)
{
    for (int k = 0; k < work->count; k++) {
        const Array *array = work->arrays + k;
        if (!strcmp(array->name, name))
            return strchr(kinds, array->kind) && (!item || item == array->item) ? array : NULL;
    }
    return NULL;
}

/* Return memory that lasts for the call. */
static void *take(Work *work, int64_t bytes)
{
    void *memory = work->taken < MOST_TEMPORARY ? PyMem_RawMalloc(bytes > 0 ? bytes : 1) : NULL;
    if (memory)
        work->temporary[work->taken++] = memory;
    else
        PyErr_NoMemory();
    return memory;
}

/* Write whole numbers of any size as int64. */
static void widen(int64_t *to, const Array *array, int64_t first, int64_t count)
{
    const uint8_t *from = array->data + first * array->item;
#define WIDEN(type)                                                                                \
    for (int64_t i = 0; i < count; i++) {                                                          \
        type number;                                                                               \
        memcpy(&number, from + i * (int64_t)sizeof number, sizeof number);                         \
        to[i] = (int64_t)number;                                                                   \
    }                                                                                              \
    break
    switch (array->kind == 'i' ? -array->item : array->item) {
    case 1: WIDEN(uint8_t);
    case 2: WIDEN(uint16_t);
    case 4: WIDEN(uint32_t);
    case -1: WIDEN(int8_t);
    case -2: WIDEN(int16_t);
    case -4: WIDEN(int32_t);
    default: WIDEN(int64_t);
    }
}

typedef struct {
    int64_t count, *at, sum;
} Whole;

/* Read an array of whole numbers none of which is below the least; 0 if it is not there. */
static int get_whole(Work *work, const char *name, int64_t least, Whole *whole)
{
    const Array *array = find(work, name, "ui", 0);
    if (!array || !(whole->at = take(work, array->count * 8)))
        return 0;
    widen(whole->at, array, 0, array->count);
    whole->count = array->count;
    whole->sum = 0;
    for (int64_t i = 0; i < whole->count; i++) {
        if (whole->at[i] < least || whole->at[i] > INT32_MAX)
            return 0;
        whole->sum += whole->at[i];
    }
    return 1;
}

/* --- numbers: bytes into palettes, and what occurs once in full ------------------------------- */

typedef struct {
    int64_t count, at[MOST_COLUMNS];
} Places;

typedef struct {
    const uint8_t *codes, *palette_sizes, *palettes, *high, *low;
    int64_t columns, rows, known; /* known: values in all palettes */
    int64_t row, start;           /* where the next block and its first palette begin */
    int64_t once[MOST_COLUMNS];   /* the next value in full of each column */
} Numbers;

static int get_numbers(const Work *work, const char *name, int64_t columns, int64_t rows,
                       int64_t blocks, Numbers *numbers)
{
    static const char *const parts[] = {"codes", "palette_sizes", "palettes", "high", "low"};
    const Array *found[5];
    for (int k = 0; k < 5; k++) {
        char part[64];
        snprintf(part, sizeof part, "%s_%s", name, parts[k]);
        if (!(found[k] = find(work, part, "u", k == 2 ? 4 : 1)))
            return 0;
    }
    if (found[0]->columns != columns || found[0]->count != columns * rows ||
        found[1]->count != columns * blocks || found[4]->count != 3 * found[3]->count)
        return 0;
    *numbers = (Numbers){found[0]->data, found[1]->data, found[2]->data, found[3]->data,
                         found[4]->data, columns,        rows,           found[2]->count,
                         0,              0,              {0}};
    int64_t once = 0; /* column by column, over all blocks */
    for (int64_t column = 0; column < columns; column++) {
        numbers->once[column] = once;
        for (int64_t row = 0; row < rows; row++)
            once += numbers->codes[column * rows + row] == ONCE;
    }
    return once == found[3]->count;
}

/* Put a column of the next block, whose palette begins at the start. Where no code can lie past the
 * palettes it is not checked; the compiler makes two loops of this. */
static inline int put_column(Numbers *n, int64_t column, int64_t size, uint32_t *to, int64_t width,
                             int checked)
{
    const uint8_t *code = n->codes + column * n->rows + n->row;
    const uint8_t *palette = n->palettes + n->start * 4;
    const int64_t known = n->known - n->start;
    int64_t once = n->once[column];
    for (int64_t i = 0; i < size; i++, to += width) {
        if (code[i] != ONCE) {
            if (checked && code[i] >= known)
                return 0;
            memcpy(to, palette + code[i] * 4, 4);
        } else {
            const uint8_t *low = n->low + once * 3;
            *to = (uint32_t)low[0] | (uint32_t)low[1] << 8 | (uint32_t)low[2] << 16 |
                  (uint32_t)n->high[once] << 24;
            once++;
        }
    }
    n->once[column] = once;
    return 1;
}

/* Put the next block's values into places of a matrix with rows of some width. */
static int next_block(Numbers *n, int64_t size, const Places *places, uint32_t *matrix,
                      int64_t width)
{
    for (int64_t column = 0; column < n->columns; column++) {
        uint32_t *to = matrix + places->at[column];
        if (!(n->known - n->start < ONCE ? put_column(n, column, size, to, width, 1)
                                         : put_column(n, column, size, to, width, 0)))
            return 0;
        n->start += *n->palette_sizes++;
    }
    n->row += size;
    return 1;
}

/* --- the samples ------------------------------------------------------------------------------ */

typedef struct {
    Work work;
    int64_t width, height; /* columns of a variable's and of a constraint's features */
    /* Columns that change and that do not, of 0/1 features, of constraints; those of rows; and
     * fractionality, LP value, is_continuous, or none where it is stored. */
    Places moving, fixed, flag_column, constraint_column, row_column, fraction;
    const Array *gaps, *flags, *candidates, *scores, *pseudocosts;
    Whole row_sizes, matrix_sizes, matrix_steps, matrix_of, sizes, patterns, candidate_sizes,
        choices;
    Numbers value, row, fixed_number, variable, constraint;
    int64_t *starts, *first_row, *heights, *edge_counts, *flag_numbers, edges;
    uint32_t *values, *features, *table;
} Shard;

/* Find everything and check that the sizes fit, so that what follows stays within its arrays. */
static int open_shard(Shard *s)
{
    Work *w = &s->work;
    if (!get_whole(w, "row_sizes", 0, &s->row_sizes) ||
        !get_whole(w, "matrix_sizes", 0, &s->matrix_sizes) ||
        !get_whole(w, "matrix_steps", INT32_MIN, &s->matrix_steps) ||
        !get_whole(w, "matrix_of", 0, &s->matrix_of) ||
        !get_whole(w, "variable_sizes", 0, &s->sizes) ||
        !get_whole(w, "flag_patterns", 0, &s->patterns) ||
        !get_whole(w, "candidate_sizes", 0, &s->candidate_sizes) ||
        !get_whole(w, "choices", 0, &s->choices) ||
        !(s->gaps = find(w, "row_gaps", "ui", 0)) || !(s->flags = find(w, "flags", "ui", 0)) ||
        !(s->candidates = find(w, "candidates", "ui", 0)) ||
        !(s->scores = find(w, "scores", "f", 8)))
        return 0;
    s->pseudocosts = find(w, "pseudocosts", "f", 8);
    const int64_t samples = s->matrix_of.count, rows = s->row_sizes.count;
    const int64_t stored = s->gaps->count;
    int64_t most = 0, constraints = 0; /* the largest state, and all of them */
    if (s->row_sizes.sum != stored || s->matrix_sizes.sum != s->matrix_steps.count ||
        s->sizes.count != samples || s->sizes.sum != s->flags->count ||
        !(s->starts = take(w, (rows + 1) * 8)) || !(s->heights = take(w, samples * 8)) ||
        !(s->edge_counts = take(w, s->matrix_sizes.count * 8)) ||
        !(s->first_row = take(w, s->matrix_sizes.count * 8)))
        return 0;
    s->starts[0] = 0;
    for (int64_t r = 0; r < rows; r++)
        s->starts[r + 1] = s->starts[r] + s->row_sizes.at[r];
    for (int64_t k = 0, i = 0; k < s->matrix_sizes.count; k++) {
        int64_t row = -1;
        s->edge_counts[k] = 0;
        s->first_row[k] = i;
        for (int64_t end = i + s->matrix_sizes.at[k]; i < end; i++) {
            row += s->matrix_steps.at[i] + 1;
            if (row < 0 || row >= rows)
                return 0;
            s->matrix_steps.at[i] = row; /* from here on the row itself */
            s->edge_counts[k] += s->row_sizes.at[row];
        }
        s->edges += s->edge_counts[k];
        if (s->edges > MOST_EDGES)
            return 0;
    }
    for (int64_t i = 0; i < samples; i++) {
        if (s->matrix_of.at[i] >= s->matrix_sizes.count)
            return 0;
        constraints += s->heights[i] = s->matrix_sizes.at[s->matrix_of.at[i]];
        most = s->sizes.at[i] > most ? s->sizes.at[i] : most;
        if (s->fixed.count && s->sizes.at[i] != s->sizes.at[0])
            return 0;
    }
    const int64_t first = samples ? s->sizes.at[0] : 0;
    return get_numbers(w, "value", 1, stored, rows, &s->value) &&
           get_numbers(w, "row", s->row_column.count, rows, 1, &s->row) &&
           get_numbers(w, "fixed", s->fixed.count, first, samples > 0, &s->fixed_number) &&
           get_numbers(w, "variable", s->moving.count, s->sizes.sum, samples, &s->variable) &&
           get_numbers(w, "constraint", s->constraint_column.count, constraints, samples,
                       &s->constraint) &&
           (s->flag_numbers = take(w, most * 8)) && (s->values = take(w, stored * 4)) &&
           (s->features = take(w, rows * s->row_column.count * 4)) &&
           (s->table = take(w, s->patterns.count * s->width * 4));
}

/* Write the non-zeros of all matrices: rows, then columns, of each; and their values. */
static int fill_matrices(Shard *s, int64_t *index, uint32_t *values)
{
    static const Places first = {1, {0}}, both = {2, {0, 1}};
    const int64_t *row_of = s->matrix_steps.at;
    for (int64_t r = 0; r < s->row_sizes.count; r++)
        if (!next_block(&s->value, s->row_sizes.at[r], &first, s->values + s->starts[r], 1))
            return 0;
    if (!next_block(&s->row, s->row_sizes.count, &both, s->features, both.count))
        return 0;
    for (int64_t k = 0; k < s->matrix_sizes.count; k++) {
        int64_t *column = index + s->edge_counts[k];
        for (int64_t i = 0; i < s->matrix_sizes.at[k]; i++, row_of++) {
            const int64_t size = s->row_sizes.at[*row_of], start = s->starts[*row_of];
            widen(column, s->gaps, start, size);
            for (int64_t e = 0; e < size; e++)
                index[e] = i;
            for (int64_t e = 1; e < size; e++)
                column[e] += column[e - 1];
            memcpy(values, s->values + start, size * 4);
            index += size, column += size, values += size;
        }
        index = column;
    }
    return 1;
}

/* SCIP's fractionality as the LP value gives it. */
static float fractionality(float value)
{
    const float x = value + 1e-6f;
    float whole;
    if (fabsf(x) < 1e6f) { /* the same as floorf, which is a call where SSE 4.1 is not assumed */
        whole = (float)(int32_t)x;
        whole -= whole > x;
    } else {
        whole = floorf(x);
    }
    return value - whole;
}

/* Write the features of all states' constraints and variables, one state below the other. */
static int fill_states(Shard *s, uint32_t *constraints, uint32_t *variables)
{
    const int64_t width = s->width, *fixed = s->fixed.at, *fraction = s->fraction.at;
    const uint32_t *first = variables;
    const int64_t *at = s->row_column.at;
    uint32_t one, *row = s->table;
    memcpy(&one, &(float){1}, 4);
    for (int64_t p = 0; p < s->patterns.count; p++, row += width) {
        memset(row, 0, width * 4);
        for (int64_t k = 0; k < s->flag_column.count; k++)
            row[s->flag_column.at[k]] = s->patterns.at[p] >> k & 1 ? one : 0;
    }
    int64_t flags = 0;
    for (int64_t i = 0; i < s->matrix_of.count; i++) {
        const int64_t size = s->sizes.at[i], height = s->heights[i];
        const int64_t *row_of = s->matrix_steps.at + s->first_row[s->matrix_of.at[i]];
        if (!next_block(&s->constraint, height, &s->constraint_column, constraints, s->height))
            return 0;
        for (int64_t r = 0; r < height; r++, constraints += s->height) {
            constraints[at[0]] = s->features[2 * row_of[r]];
            constraints[at[1]] = s->features[2 * row_of[r] + 1];
        }
        /* Whole rows come from the table of flags; the other columns are put over them. */
        widen(s->flag_numbers, s->flags, flags, size);
        flags += size;
        for (int64_t v = 0; v < size; v++) {
            if (s->flag_numbers[v] < 0 || s->flag_numbers[v] >= s->patterns.count)
                return 0;
            memcpy(variables + v * width, s->table + s->flag_numbers[v] * width, width * 4);
        }
        if (!next_block(&s->variable, size, &s->moving, variables, width))
            return 0;
        if (i == 0 && !next_block(&s->fixed_number, size, &s->fixed, variables, width))
            return 0;
        for (int64_t v = 0; v < size && i > 0; v++)
            for (int64_t k = 0; k < s->fixed.count; k++)
                variables[v * width + fixed[k]] = first[v * width + fixed[k]];
        for (int64_t v = 0; v < size && s->fraction.count; v++) {
            float value, continuous;
            memcpy(&value, variables + v * width + fraction[1], 4);
            memcpy(&continuous, variables + v * width + fraction[2], 4);
            value = continuous != 0 ? 0 : fractionality(value);
            memcpy(variables + v * width + fraction[0], &value, 4);
        }
        variables += size * width;
    }
    return 1;
}

/* --- the call --------------------------------------------------------------------------------- */

/* Read column numbers below a width. */
static int get_places(PyObject *list, int64_t width, Places *places)
{
    if (!PyList_Check(list) || PyList_GET_SIZE(list) > MOST_COLUMNS)
        return 0;
    places->count = PyList_GET_SIZE(list);
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(list); k++) {
        places->at[k] = PyLong_AsLongLong(PyList_GET_ITEM(list, k));
        if (places->at[k] < 0 || places->at[k] >= width)
            return 0;
    }
    return 1;
}

static PyObject *list_of(const int64_t *numbers, int64_t count)
{
    PyObject *list = PyList_New(count);
    for (int64_t i = 0; list && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (!number)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, number);
    }
    return list;
}

enum { CONSTRAINTS, VARIABLES, INDEX, VALUES, CANDIDATES, SCORES, PSEUDOCOSTS, OUTPUTS };

/* Return the parts, or NULL; without an exception where something does not fit. */
static PyObject *parts(Shard *s)
{
    PyObject *out[OUTPUTS] = {NULL}, *result = NULL;
    if (!open_shard(s))
        return NULL;
    const int64_t bytes[OUTPUTS] = {
        s->constraint.rows * s->height * 4, s->variable.rows * s->width * 4,
        s->edges * 16,                      s->edges * 4,
        s->candidates->count * 8,           s->scores->count * 8,
        s->pseudocosts ? s->pseudocosts->count * 8 : 0,
    };
    void *at[OUTPUTS];
    int good = 1;
    for (int k = 0; k < OUTPUTS && good; k++) {
        good = (out[k] = PyByteArray_FromStringAndSize(NULL, bytes[k])) != NULL;
        at[k] = good ? PyByteArray_AS_STRING(out[k]) : NULL;
    }
    if (good) {
        Py_BEGIN_ALLOW_THREADS
        good = fill_matrices(s, at[INDEX], at[VALUES]) &&
               fill_states(s, at[CONSTRAINTS], at[VARIABLES]);
        widen(at[CANDIDATES], s->candidates, 0, s->candidates->count);
        memcpy(at[SCORES], s->scores->data, bytes[SCORES]);
        if (s->pseudocosts)
            memcpy(at[PSEUDOCOSTS], s->pseudocosts->data, bytes[PSEUDOCOSTS]);
        Py_END_ALLOW_THREADS
    }
    if (good)
        result = Py_BuildValue(
            "OOOOOOONNNNNN", out[0], out[1], out[2], out[3], out[4], out[5],
            s->pseudocosts ? out[6] : Py_None, list_of(s->heights, s->matrix_of.count),
            list_of(s->sizes.at, s->sizes.count), list_of(s->edge_counts, s->matrix_sizes.count),
            list_of(s->matrix_of.at, s->matrix_of.count),
            list_of(s->candidate_sizes.at, s->candidate_sizes.count),
            list_of(s->choices.at, s->choices.count));
    for (int k = 0; k < OUTPUTS; k++)
        Py_XDECREF(out[k]);
    return result;
}

/* Arguments: for each of two members its layout and its bytes; the columns of variables: how many,
 * that change, that do not, of 0/1 features, of the fractionality; the columns of constraints: how
 * many, that change, of rows. */
static PyObject *decode(PyObject *module, PyObject *args)
{
    PyObject *layouts[2], *places[6], *result = NULL;
    Py_buffer members[2];
    long long width, height;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!y*O!y*LOOOOLOO:decode", &PyDict_Type, layouts, members,
                          &PyDict_Type, layouts + 1, members + 1, &width, places, places + 1,
                          places + 2, places + 3, &height, places + 4, places + 5))
        return NULL;
    Shard *s = PyMem_RawCalloc(1, sizeof *s);
    if (!s) {
        PyErr_NoMemory();
    } else {
        s->width = width;
        s->height = height;
        if (split(&s->work, layouts[0], members) && split(&s->work, layouts[1], members + 1) &&
            get_places(places[0], width, &s->moving) && get_places(places[1], width, &s->fixed) &&
            get_places(places[2], width, &s->flag_column) &&
            get_places(places[3], width, &s->fraction) &&
            get_places(places[4], height, &s->constraint_column) &&
            get_places(places[5], height, &s->row_column) && s->row_column.count == 2 &&
            (s->fraction.count == 3 || s->fraction.count == 0))
            result = parts(s);
        for (int k = 0; k < s->work.taken; k++)
            PyMem_RawFree(s->work.temporary[k]);
        PyMem_RawFree(s);
    }
    PyBuffer_Release(members);
    PyBuffer_Release(members + 1);
    if (!result && !(PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_MemoryError)))
        PyErr_SetString(PyExc_ValueError, "the arrays do not fit together");
    return result;
}

static PyMethodDef methods[] = {
    {"decode", decode, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_decoding", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__decoding(void)
{
    const uint16_t number = 1;
    if (*(const uint8_t *)&number != 1) { /* files are little-endian, and read here as they are */
        PyErr_SetString(PyExc_ImportError, "this machine is big-endian");
        return NULL;
    }
    return PyModule_Create(&definition);
}
