; The function that XLA calls for all machine code of a process; see _handler.py, which fills in what stands in braces after a dollar sign,
; and adds `@evaluate`, on a CPU that of threads.ll, on a GPU that of gpu.ll.
;
; Places in XLA's structures are bytes from their beginning, on a machine of 64 bits:
;   XLA_FFI_CallFrame: extension 8, api 16, context 24, arguments: number 56, buffers 72, results: number 96, buffers 112,
;     attributes 160
;   XLA_FFI_Buffer: data 24, rank 32, dims 40.  XLA_FFI_Scalar: value 8
; and in an entry of the table: run 0, mend 8, flags 16, first 24, chunk 32, running 40, blocks 48, left 56, step 64, count 72.

@gone = private constant [${length} x i8] c"${gone}\00"

define internal ptr @failed(ptr %frame, ptr %message) noinline {
entry:
  %pa = getelementptr i8, ptr %frame, i64 16
  %api = load ptr, ptr %pa
  %pf = getelementptr i8, ptr %api, i64 ${Error_Create}
  %create = load ptr, ptr %pf
  %args = alloca [32 x i8], align 8
  store i64 32, ptr %args
  %e = getelementptr i8, ptr %args, i64 8
  store ptr null, ptr %e
  %m = getelementptr i8, ptr %args, i64 16
  store ptr %message, ptr %m
  %c = getelementptr i8, ptr %args, i64 24
  store i32 9, ptr %c
  %error = call ptr %create(ptr %args)
  ret ptr %error
}

; Frees an error that XLA has returned, if there is one; tells whether there was one.
define internal i1 @had_error(ptr %api, ptr %error) noinline {
entry:
  %none = icmp eq ptr %error, null
  br i1 %none, label %no, label %yes
yes:
  %pf = getelementptr i8, ptr %api, i64 ${Error_Destroy}
  %destroy = load ptr, ptr %pf
  %args = alloca [24 x i8], align 8
  store i64 24, ptr %args
  %e = getelementptr i8, ptr %args, i64 8
  store ptr null, ptr %e
  %p = getelementptr i8, ptr %args, i64 16
  store ptr %error, ptr %p
  call void %destroy(ptr %args)
  ret i1 true
no:
  ret i1 false
}

define internal void @data(ptr %buffers, i64 %count, ptr %into) {
entry:
  br label %head
head:
  %k = phi i64 [0, %entry], [%k1, %body]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %body, label %done
body:
  %pb = getelementptr ptr, ptr %buffers, i64 %k
  %b = load ptr, ptr %pb
  %pd = getelementptr i8, ptr %b, i64 24
  %d = load ptr, ptr %pd
  %pi = getelementptr ptr, ptr %into, i64 %k
  store ptr %d, ptr %pi
  %k1 = add i64 %k, 1
  br label %head
done:
  ret void
}

; The length of the first axis of a buffer; 1 for a number.
define internal i64 @length(ptr %buffer) {
entry:
  %pr = getelementptr i8, ptr %buffer, i64 32
  %rank = load i64, ptr %pr
  %number = icmp eq i64 %rank, 0
  br i1 %number, label %one, label %axis
axis:
  %pd = getelementptr i8, ptr %buffer, i64 40
  %dims = load ptr, ptr %pd
  %n = load i64, ptr %dims
  ret i64 %n
one:
  ret i64 1
}

define ptr @handler(ptr %frame) {
entry:
  %pe = getelementptr i8, ptr %frame, i64 8
  %ext = load ptr, ptr %pe
  %plain = icmp eq ptr %ext, null
  br i1 %plain, label %look, label %asked
asked:
  %pt = getelementptr i8, ptr %ext, i64 8
  %kind = load i32, ptr %pt
  %version = icmp eq i32 %kind, 1
  br i1 %version, label %tell, label %look
tell:
  %pm = getelementptr i8, ptr %ext, i64 24
  %meta = load ptr, ptr %pm
  %major = getelementptr i8, ptr %meta, i64 24
  store i32 ${major}, ptr %major
  %minor = getelementptr i8, ptr %meta, i64 28
  store i32 ${minor}, ptr %minor
  ret ptr null
look:
  %pat = getelementptr i8, ptr %frame, i64 160
  %attrs = load ptr, ptr %pat
  %scalar = load ptr, ptr %attrs
  %pv = getelementptr i8, ptr %scalar, i64 8
  %v = load ptr, ptr %pv
  %key = load i64, ptr %v
  %start = and i64 %key, ${mask}
  br label %search
search:
  %k = phi i64 [%start, %look], [%k2, %step]
  %tries = phi i64 [0, %look], [%tries1, %step]
  %place = getelementptr { i64, ptr }, ptr inttoptr (i64 ${table} to ptr), i64 %k
  %there = load i64, ptr %place
  %same = icmp eq i64 %there, %key
  br i1 %same, label %found, label %other
other:
  %empty = icmp eq i64 %there, 0
  %tries1 = add i64 %tries, 1
  %all = icmp sgt i64 %tries1, ${mask}
  %stop = or i1 %empty, %all
  br i1 %stop, label %missing, label %step
step:
  %k1 = add i64 %k, 1
  %k2 = and i64 %k1, ${mask}
  br label %search
missing:
  %error = call ptr @failed(ptr %frame, ptr @gone)
  ret ptr %error
found:
  %pentry = getelementptr i8, ptr %place, i64 8
  %e = load atomic ptr, ptr %pentry seq_cst, align 8
  %nothing = icmp eq ptr %e, null
  br i1 %nothing, label %missing, label %enter
enter:
  %running = getelementptr i8, ptr %e, i64 40
  %r0 = atomicrmw add ptr %running, i64 1 seq_cst
  %e2 = load atomic ptr, ptr %pentry seq_cst, align 8
  %still = icmp eq ptr %e, %e2
  br i1 %still, label %call, label %late
late:
  %r1 = atomicrmw sub ptr %running, i64 1 seq_cst
  br label %missing
call:
  %pna = getelementptr i8, ptr %frame, i64 56
  %na = load i64, ptr %pna
  %pargs = getelementptr i8, ptr %frame, i64 72
  %args = load ptr, ptr %pargs
  %pnr = getelementptr i8, ptr %frame, i64 96
  %nr = load i64, ptr %pnr
  %prets = getelementptr i8, ptr %frame, i64 112
  %rets = load ptr, ptr %prets
  %n = add i64 %na, %nr
  %n2 = add i64 %n, 3
  %arrays = alloca ptr, i64 %n2, align 8
  call void @data(ptr %args, i64 %na, ptr %arrays)
  %results = getelementptr ptr, ptr %arrays, i64 %na
  call void @data(ptr %rets, i64 %nr, ptr %results)
  %pfirst = getelementptr i8, ptr %e, i64 24
  %first = load i64, ptr %pfirst
  %shared = icmp slt i64 %first, 0
  br i1 %shared, label %sized, label %batched
batched:
  %pb = getelementptr ptr, ptr %args, i64 %first
  %b = load ptr, ptr %pb
  %length = call i64 @length(ptr %b)
  br label %sized
sized:
  %size = phi i64 [1, %call], [%length, %batched]
  %said = call ptr @evaluate(ptr %frame, ptr %e, ptr %arrays, i64 %n, i64 %size)
  %r2 = atomicrmw sub ptr %running, i64 1 seq_cst
  %well = icmp eq ptr %said, null
  br i1 %well, label %success, label %failure
success:
  ret ptr null
failure:
  %error2 = call ptr @failed(ptr %frame, ptr %said)
  ret ptr %error2
}
