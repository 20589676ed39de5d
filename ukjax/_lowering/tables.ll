; Reads the rows of tables to which a lane points, the nearest ones if there are none; see _loop.py.
@${name}.of = internal constant [${count} x i64] [${of}]
@${name}.bytes = internal constant [${count} x i64] [${bytes}]
@${name}.row = internal constant [${count} x i64] [${row}]
@${name}.item = internal constant [${count} x i64] [${item}]
@${name}.slot = internal constant [${count} x i64] [${slot}]
@${name}.size = internal constant [${count} x i64] [${size}]
define internal void @${name}(ptr %arrays, ptr %kept, i64 %member, i64 %lane) noinline {
entry:
  %j = call i64 @number(ptr %kept, i64 ${at}, i64 %lane)
  %low = icmp slt i64 %j, 0
  %j0 = select i1 %low, i64 0, i64 %j
  %high = icmp sgt i64 %j0, ${last}
  %at = select i1 %high, i64 ${last}, i64 %j0
  br label %head
head:
  %k = phi i64 [0, %entry], [%k1, %known]
  %some = icmp slt i64 %k, ${count}
  br i1 %some, label %known, label %done
known:
  %po = getelementptr i64, ptr @${name}.of, i64 %k
  %o = load i64, ptr %po
  %pa = getelementptr ptr, ptr %arrays, i64 %o
  %a = load ptr, ptr %pa
  %pb = getelementptr i64, ptr @${name}.bytes, i64 %k
  %b = load i64, ptr %pb
  %pr = getelementptr i64, ptr @${name}.row, i64 %k
  %r = load i64, ptr %pr
  %pi = getelementptr i64, ptr @${name}.item, i64 %k
  %i = load i64, ptr %pi
  %ps = getelementptr i64, ptr @${name}.slot, i64 %k
  %s = load i64, ptr %ps
  %pn = getelementptr i64, ptr @${name}.size, i64 %k
  %n = load i64, ptr %pn
  %member0 = mul i64 %member, %b
  %first = getelementptr i8, ptr %a, i64 %member0
  %row0 = mul i64 %at, %r
  %row = getelementptr i8, ptr %first, i64 %row0
  %lane0 = mul i64 %lane, %i
  %slot0 = getelementptr i8, ptr %kept, i64 %s
  %slots = getelementptr i8, ptr %slot0, i64 %lane0
  call void @entries(ptr %row, ptr %slots, i64 %n, i64 %i, i1 true)
  %k1 = add i64 %k, 1
  br label %head
done:
  ret void
}

