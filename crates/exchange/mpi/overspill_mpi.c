/* What Overspill needs of MPI, as functions without MPI's types, which differ between its implementations. `make mpi` compiles it with
   the mpicc of the cluster; overspill loads it at run time. One thread makes all calls. Functions return 0, or an MPI error code. */

#include <mpi.h>
#include <stdlib.h>

/* Open MPI and its kin declare there what they know of GPUs. Others lack the file. */
#if defined(__has_include)
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif
#endif

/* Rises when a function changes; Rust refuses another. */
#define INTERFACE 3

/* All messages have a communicator of their own. */
static MPI_Comm world = MPI_COMM_NULL;

int overspill_mpi_interface(void) { return INTERFACE; }

/* Starts MPI on the calling thread. */
int overspill_mpi_start(int *rank, int *ranks) {
    int provided, code;
    if ((code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided)) != MPI_SUCCESS) return code;
    if (provided < MPI_THREAD_FUNNELED) return MPI_ERR_OTHER;
    if ((code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN)) != MPI_SUCCESS) return code;
    if ((code = MPI_Comm_dup(MPI_COMM_WORLD, &world)) != MPI_SUCCESS) return code;
    if ((code = MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN)) != MPI_SUCCESS) return code;
    if ((code = MPI_Comm_rank(world, rank)) != MPI_SUCCESS) return code;
    return MPI_Comm_size(world, ranks);
}

/* For each rank, the lowest rank with which it shares memory. */
int overspill_mpi_nodes(int *lowest) {
    MPI_Comm node;
    int rank, code;
    if ((code = MPI_Comm_rank(world, &rank)) != MPI_SUCCESS) return code;
    code = MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    if (code != MPI_SUCCESS) return code;
    int first = rank;
    code = MPI_Bcast(&first, 1, MPI_INT, 0, node);
    MPI_Comm_free(&node);
    if (code != MPI_SUCCESS) return code;
    return MPI_Allgather(&first, 1, MPI_INT, lowest, 1, MPI_INT, world);
}

/* Whether messages may be in the memory of NVIDIA's GPUs. MPI has been started. */
int overspill_mpi_takes_gpu_memory(void) {
#if defined(MPIX_CUDA_AWARE_SUPPORT)
    /* Open MPI and MVAPICH. The macro says what the headers were built for, and the function what the library does. */
    return MPIX_Query_cuda_support();
#elif defined(MPIX_GPU_SUPPORT_CUDA)
    /* MPICH 4 and its kin. */
    int is_supported = 0;
    return MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &is_supported) == MPI_SUCCESS && is_supported;
#else
    return 0;
#endif
}

static MPI_Request *new_request(void) { return malloc(sizeof(MPI_Request)); }

static int started(int code, MPI_Request *request, void **out) {
    if (code != MPI_SUCCESS) {
        free(request);
        return code;
    }
    *out = request;
    return MPI_SUCCESS;
}

/* Begins to send. The bytes stay until the request is done, which it is when the other rank has begun to receive them. */
int overspill_mpi_send(const void *bytes, int count, int to, int tag, void **out) {
    MPI_Request *request = new_request();
    if (!request) return MPI_ERR_NO_MEM;
    return started(MPI_Issend(bytes, count, MPI_BYTE, to, tag, world, request), request, out);
}

/* Begins to receive. The bytes stay until the request is done. */
int overspill_mpi_receive(void *bytes, int count, int from, int tag, void **out) {
    MPI_Request *request = new_request();
    if (!request) return MPI_ERR_NO_MEM;
    return started(MPI_Irecv(bytes, count, MPI_BYTE, from, tag, world, request), request, out);
}

/* Whether a message with this tag has come, from which rank, and of how many bytes. */
int overspill_mpi_probe(int tag, int *is_there, int *from, int *count) {
    MPI_Status status;
    int code = MPI_Iprobe(MPI_ANY_SOURCE, tag, world, is_there, &status);
    if (code != MPI_SUCCESS || !*is_there) return code;
    *from = status.MPI_SOURCE;
    return MPI_Get_count(&status, MPI_BYTE, count);
}

/* Whether a request is done. It is gone then, and if it has failed. If it receives, `count` may get the bytes that it has received; for others it
   is NULL. */
int overspill_mpi_test(void *request, int *is_done, int *count) {
    MPI_Status status;
    int code = MPI_Test(request, is_done, &status);
    if (code != MPI_SUCCESS || *is_done) free(request);
    if (code != MPI_SUCCESS || !*is_done || !count) return code;
    return MPI_Get_count(&status, MPI_BYTE, count);
}

/* Begins to wait until all ranks do. */
int overspill_mpi_barrier(void **out) {
    MPI_Request *request = new_request();
    if (!request) return MPI_ERR_NO_MEM;
    return started(MPI_Ibarrier(world, request), request, out);
}

/* Sends each rank its part and receives a part of each: the bound of an exchange. */
int overspill_mpi_all_to_all(const void *from, const int *counts, const int *starts, void *to, const int *to_counts, const int *to_starts) {
    return MPI_Alltoallv(from, counts, starts, MPI_BYTE, to, to_counts, to_starts, MPI_BYTE, world);
}

/* What an error code means. */
void overspill_mpi_error(int code, char *text, int size) {
    char words[MPI_MAX_ERROR_STRING];
    int length = 0, i;
    if (MPI_Error_string(code, words, &length) != MPI_SUCCESS) length = 0;
    for (i = 0; i < length && i + 1 < size; i++) text[i] = words[i];
    if (size > 0) text[i] = 0;
}

/* Ends MPI on all ranks. */
int overspill_mpi_end(void) {
    MPI_Comm_free(&world);
    return MPI_Finalize();
}
