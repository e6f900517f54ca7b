/* Loops over the rows of a sparse matrix, compiled: what learn2branch/attention.py, combine.py,
 * bgnn.py and native.py call where a compiler was present at installation. The plain versions there define the
 * results.
 *
 * Arguments arrive as addresses of contiguous arrays; the Python side checks types and sizes.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EPSILON 1e-8 /* learn2branch.attention.EPSILON */
#define CLAMP 5      /* learn2branch.attention.CLAMP */
#define MOST_ARGUMENTS 16
#define MOST_THREADS 16

struct sizes {
    long rows, heads, width;
};

typedef void (*row_function)(long first, long last, struct sizes sizes, void **arrays);

/* A folded dual-attention network and the graph to score: 8 bytes a field, since Python fills it as
 * an array (learn2branch/policy.py). Matrices are packed in panels of 16 columns. */
struct side {
    const float *self_key, *self_query, *self_output, *self_gain, *self_shift;
    const float *cross_query, *cross_output, *cross_gain, *cross_shift;
    const float *fusion, *fusion_bias, *fusion_gain, *fusion_shift;
    const float *inner, *outer, *gain, *shift;
};

struct nodes {
    int64_t count, columns;
    const float *features;
    const int64_t *pointers, *neighbours; /* their non-zeros */
    const float *values;
    const float *first, *first_bias, *second, *second_bias; /* the embedding */
};

struct network {
    int64_t layers, heads, width, inner, by_self, by_cross, pools;
    struct nodes variables, constraints;
    int64_t candidates; /* how many; negative: all variables */
    const int64_t *candidate;
    float *scores;
    const float *hidden, *hidden_bias, *out; /* the head */
    struct side sides[];                     /* variables, constraints, layer by layer */
};

/* Kept from call to call unless it is large; calls do not overlap. */
static float *workspace = NULL;
static size_t workspace_size = 0;
#define LARGE_WORKSPACE (16 << 20)

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_AVX2 1
#include <immintrin.h>
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define REAL float
#define INTEGER int32_t
#define SINGLE 1
#define NAME(x) x##_float_avx2
#define FMA(a, b, c) ((VEC)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#include "_kernels_body.c"
#include "_combine.c"
#include "_network.c"
#undef REAL
#undef INTEGER
#undef SINGLE
#undef NAME
#undef FMA
#define REAL double
#define INTEGER int64_t
#define SINGLE 0
#define NAME(x) x##_double_avx2
#define FMA(a, b, c) ((VEC)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#include "_kernels_body.c"
#include "_combine.c"
#undef REAL
#undef INTEGER
#undef SINGLE
#undef NAME
#undef FMA
#pragma GCC pop_options
#endif

#define FMA(a, b, c) ((a) * (b) + (c))
#define REAL float
#define INTEGER int32_t
#define SINGLE 1
#define NAME(x) x##_float_any
#include "_kernels_body.c"
#include "_combine.c"
#include "_network.c"
#undef REAL
#undef INTEGER
#undef SINGLE
#undef NAME
#define REAL double
#define INTEGER int64_t
#define SINGLE 0
#define NAME(x) x##_double_any
#include "_kernels_body.c"
#include "_combine.c"

static int has_avx2(void)
{
#ifdef HAS_AVX2
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 0;
#endif
}

struct task {
    row_function function;
    long first, last;
    struct sizes sizes;
    void **arrays;
};

static void *run_task(void *argument)
{
    struct task *task = argument;
    task->function(task->first, task->last, task->sizes, task->arrays);
    return NULL;
}

/* Run over all rows, shared among threads so that each gets about as many non-zeros. */
static void run(row_function function, struct sizes sizes, long threads, void **arrays)
{
    const int64_t *pointers = arrays[0];
    struct task tasks[MOST_THREADS];
    pthread_t handles[MOST_THREADS];
    int started[MOST_THREADS];
    const long work = pointers[sizes.rows] + sizes.rows;
    if (threads > MOST_THREADS)
        threads = MOST_THREADS;
    if (work < 4096 || threads < 1)
        threads = 1;
    long row = 0;
    for (long t = 0; t < threads; t++) {
        const long first = row, until = work / threads * (t + 1);
        if (t == threads - 1)
            row = sizes.rows;
        else
            while (row < sizes.rows && pointers[row] + row < until)
                row++;
        tasks[t] = (struct task){function, first, row, sizes, arrays};
    }
    for (long t = 1; t < threads; t++) {
        started[t] = pthread_create(&handles[t], NULL, run_task, &tasks[t]) == 0;
        if (!started[t])
            run_task(&tasks[t]);
    }
    run_task(&tasks[0]);
    for (long t = 1; t < threads; t++)
        if (started[t])
            pthread_join(handles[t], NULL);
}

/* Arguments: whether double, threads, rows, [heads,] width, addresses. */
static PyObject *call(PyObject *const *args, Py_ssize_t count, int with_heads,
                      const row_function functions[4])
{
    void *arrays[MOST_ARGUMENTS];
    const Py_ssize_t start = with_heads ? 5 : 4;
    if (count <= start || count - start > MOST_ARGUMENTS) {
        PyErr_SetString(PyExc_TypeError, "wrong number of arguments");
        return NULL;
    }
    const long is_double = PyLong_AsLong(args[0]), threads = PyLong_AsLong(args[1]);
    const struct sizes sizes = {PyLong_AsLong(args[2]), with_heads ? PyLong_AsLong(args[3]) : 1,
                                PyLong_AsLong(args[start - 1])};
    for (Py_ssize_t k = start; k < count; k++)
        arrays[k - start] = PyLong_AsVoidPtr(args[k]);
    if (PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    run(functions[(is_double ? 2 : 0) + has_avx2()], sizes, threads, arrays);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

#ifdef HAS_AVX2
#define VERSIONS(f) {f##_float_any, f##_float_avx2, f##_double_any, f##_double_avx2}
#else
#define VERSIONS(f) {f##_float_any, f##_float_any, f##_double_any, f##_double_any}
#endif
#define EXPORT(f, with_heads)                                                                      \
    static PyObject *py_##f(PyObject *module, PyObject *const *args, Py_ssize_t count)             \
    {                                                                                              \
        static const row_function functions[4] = VERSIONS(f);                                      \
        (void)module;                                                                              \
        return call(args, count, with_heads, functions);                                           \
    }
EXPORT(attention_forward, 1)
EXPORT(attention_backward_rows, 1)
EXPORT(attention_backward_columns, 1)
EXPORT(self_attention_forward, 1)
EXPORT(self_attention_backward, 1)
EXPORT(combine_forward, 1)
EXPORT(combine_backward, 1)
EXPORT(edge_sums_forward, 0)
EXPORT(edge_sums_backward_rows, 0)
EXPORT(edge_sums_backward_columns, 0)

/* Sort edges by row and by column, by counting; ascending within each row and each column. */
static int sort_edges(long edges, long rows, long columns, const int64_t *index,
                      int64_t *row_pointers, int64_t *row_columns, int64_t *row_twins,
                      int64_t *column_pointers, int64_t *column_rows, int64_t *column_twins,
                      int64_t *order)
{
    const int64_t *row = index, *column = index + edges;
    int64_t *place = row_twins; /* free until the end: edges sorted by column */
    memset(row_pointers, 0, (rows + 1) * sizeof(int64_t));
    memset(column_pointers, 0, (columns + 1) * sizeof(int64_t));
    for (long e = 0; e < edges; e++) {
        if (row[e] < 0 || row[e] >= rows || column[e] < 0 || column[e] >= columns)
            return 0;
        row_pointers[row[e] + 1]++;
        column_pointers[column[e] + 1]++;
    }
    for (long i = 0; i < rows; i++)
        row_pointers[i + 1] += row_pointers[i];
    for (long j = 0; j < columns; j++)
        column_pointers[j + 1] += column_pointers[j];
    /* A stable sort by column, then by row, leaves the columns of each row ascending. While a
     * pass fills, pointers[k] is where k's next entry goes; afterwards it is shifted back. */
    for (long e = 0; e < edges; e++)
        place[column_pointers[column[e]]++] = e;
    memmove(column_pointers + 1, column_pointers, columns * sizeof(int64_t));
    column_pointers[0] = 0;
    for (long k = 0; k < edges; k++)
        order[row_pointers[row[place[k]]]++] = place[k];
    memmove(row_pointers + 1, row_pointers, rows * sizeof(int64_t));
    row_pointers[0] = 0;
    for (long i = 0; i < rows; i++)
        for (int64_t k = row_pointers[i]; k < row_pointers[i + 1]; k++) {
            const int64_t j = column[order[k]], p = column_pointers[j]++;
            row_columns[k] = j;
            row_twins[k] = p;
            column_rows[p] = i;
            column_twins[p] = k;
        }
    memmove(column_pointers + 1, column_pointers, columns * sizeof(int64_t));
    column_pointers[0] = 0;
    return 1;
}

static PyObject *py_sort_edges(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    long long n[3];
    void *a[8];
    int inside;
    (void)module;
    if (count != 11) {
        PyErr_SetString(PyExc_TypeError, "wrong number of arguments");
        return NULL;
    }
    for (int k = 0; k < 3; k++)
        n[k] = PyLong_AsLongLong(args[k]);
    for (int k = 0; k < 8; k++)
        a[k] = PyLong_AsVoidPtr(args[3 + k]);
    if (PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    inside = sort_edges(n[0], n[1], n[2], a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(inside);
}

/* Argument: the address of a struct network. Keeps the interpreter's lock, for the workspace. */
static PyObject *py_score(PyObject *module, PyObject *argument)
{
    const struct network *network = PyLong_AsVoidPtr(argument);
    int scored;
    (void)module;
    if (PyErr_Occurred())
        return NULL;
#ifdef HAS_AVX2
    if (has_avx2())
        scored = score_float_avx2(network);
    else
#endif
        scored = score_float_any(network);
    if (!scored)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

#define METHOD(f) {#f, (PyCFunction)(void (*)(void))py_##f, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {
    METHOD(attention_forward),
    METHOD(attention_backward_rows),
    METHOD(attention_backward_columns),
    METHOD(self_attention_forward),
    METHOD(self_attention_backward),
    METHOD(combine_forward),
    METHOD(combine_backward),
    METHOD(edge_sums_forward),
    METHOD(edge_sums_backward_rows),
    METHOD(edge_sums_backward_columns),
    METHOD(sort_edges),
    {"score", py_score, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernels", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernels(void)
{
    return PyModule_Create(&definition);
}
