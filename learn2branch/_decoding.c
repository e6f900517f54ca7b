/* Samples from a shard's arrays: the two loops of learn2branch/encoding.py where the time goes; the
 * plain versions there define the results. No size or position that comes from a file is trusted:
 * what does not fit raises ValueError. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MOST_BUFFERS 8

/* Get the arrays' buffers, the last `written` of them for writing; 0 and an exception if not. */
static int get_buffers(PyObject *const *args, Py_ssize_t count, int expected, int written,
                       Py_buffer *buffers)
{
    if (count != expected) {
        PyErr_SetString(PyExc_TypeError, "wrong number of arguments");
        return 0;
    }
    for (int k = 0; k < expected; k++) {
        const int flags = k < expected - written ? PyBUF_C_CONTIGUOUS
                                                 : PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE;
        if (PyObject_GetBuffer(args[k], buffers + k, flags) < 0) {
            while (k-- > 0)
                PyBuffer_Release(buffers + k);
            return 0;
        }
    }
    return 1;
}

static PyObject *release(Py_buffer *buffers, int count, int good)
{
    for (int k = 0; k < count; k++)
        PyBuffer_Release(buffers + k);
    if (good)
        Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "the arrays do not fit together");
    return NULL;
}

/* Put palette values, and those that occur once, into columns of a matrix. Codes lie column by
 * column, palettes block by block and column by column within. */
static int numbers(const Py_buffer *b)
{
    const uint8_t *code = b[0].buf, *palette_sizes = b[1].buf, *palettes = b[2].buf;
    const uint8_t *high = b[3].buf, *low = b[4].buf;
    const int64_t *sizes = b[5].buf, *places = b[6].buf;
    const int64_t blocks = b[5].len / 8, columns = b[6].len / 8;
    const int64_t known = b[2].len / 4, full = b[3].len, width = b[7].shape[1];
    int64_t rows = 0, once = 0;
    for (int64_t block = 0; block < blocks; block++) {
        if (sizes[block] < 0)
            return 0;
        rows += sizes[block];
    }
    if (b[7].len != rows * width * 4 || b[0].len != rows * columns || b[4].len != full * 3 ||
        b[1].len != blocks * columns)
        return 0;
    for (int64_t column = 0; column < columns; column++) {
        int64_t start = 0; /* of the palette */
        if (places[column] < 0 || places[column] >= width)
            return 0;
        uint8_t *to = (uint8_t *)b[7].buf + places[column] * 4;
        for (int64_t block = 0; block < blocks; block++) {
            const uint8_t *palette_size = palette_sizes + block * columns;
            for (int64_t k = 0; k < column; k++)
                start += palette_size[k];
            for (int64_t i = 0; i < sizes[block]; i++, code++, to += width * 4) {
                if (*code < 255) {
                    if (start + *code >= known)
                        return 0;
                    memcpy(to, palettes + (start + *code) * 4, 4);
                } else {
                    if (once >= full)
                        return 0;
                    const uint32_t bits = (uint32_t)low[once * 3] |
                                          (uint32_t)low[once * 3 + 1] << 8 |
                                          (uint32_t)low[once * 3 + 2] << 16 |
                                          (uint32_t)high[once] << 24;
                    memcpy(to, &bits, 4);
                    once++;
                }
            }
            for (int64_t k = column; k < columns; k++)
                start += palette_size[k];
        }
    }
    return once == full;
}

/* Arguments: codes, palette sizes, palettes, high, low, sizes, places, the matrix. */
static PyObject *py_numbers(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer buffers[MOST_BUFFERS];
    int good;
    (void)module;
    if (!get_buffers(args, count, 8, 1, buffers))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    good = numbers(buffers);
    Py_END_ALLOW_THREADS
    return release(buffers, 8, good);
}

/* Write the non-zeros of some of the stored rows, whose columns are kept as gaps. */
static int take_rows(const Py_buffer *b)
{
    const int64_t *rows = b[0].buf, *starts = b[1].buf, *gaps = b[2].buf;
    const float *values = b[3].buf;
    const int64_t height = b[0].len / 8, known = b[1].len / 8 - 1, stored = b[2].len / 8;
    const int64_t edges = b[5].len / 4;
    int64_t *row_of = b[4].buf, *column_of = row_of + edges, edge = 0;
    float *value_of = b[5].buf;
    if (b[3].len != stored * 4 || b[4].len != edges * 16)
        return 0;
    for (int64_t i = 0; i < height; i++) {
        if (rows[i] < 0 || rows[i] >= known)
            return 0;
        const int64_t start = starts[rows[i]], end = starts[rows[i] + 1];
        if (start < 0 || end < start || end > stored || edge + end - start > edges)
            return 0;
        int64_t column = 0;
        for (int64_t k = start; k < end; k++, edge++) {
            column += gaps[k];
            row_of[edge] = i;
            column_of[edge] = column;
            value_of[edge] = values[k];
        }
    }
    return edge == edges;
}

/* Arguments: the rows' numbers, starts, gaps, values; edge index and edge values to write. */
static PyObject *py_take_rows(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer buffers[MOST_BUFFERS];
    int good;
    (void)module;
    if (!get_buffers(args, count, 6, 2, buffers))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    good = take_rows(buffers);
    Py_END_ALLOW_THREADS
    return release(buffers, 6, good);
}

#define METHOD(f) {#f, (PyCFunction)(void (*)(void))py_##f, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {
    METHOD(numbers),
    METHOD(take_rows),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_decoding", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__decoding(void)
{
    return PyModule_Create(&definition);
}
