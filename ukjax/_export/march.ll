; Steps of an explicit Runge-Kutta method, each ended by a projection. $n entries of the state y =
; (q, v), of which the first $q are coordinates; $stages stages. Filled in by `_live`.

@stage_weights = internal constant [$squared x double] [$a]
@end_weights = internal constant [$stages x double] [$b]
@stage_times = internal constant [$stages x double] [$c]

; to = y + h (w_0 k_0 + ... + w_(s-1) k_(s-1)), for slopes k, one behind the other.
define internal void @combine(ptr %to, ptr %y, ptr %k, ptr %w, i32 %s, double %h) {
entry:
  br label %entries
entries:
  %j = phi i32 [ 0, %entry ], [ %j1, %written ]
  br label %sum
sum:
  %i = phi i32 [ 0, %entries ], [ %i1, %add ]
  %so_far = phi double [ 0.0, %entries ], [ %more, %add ]
  %summed = icmp uge i32 %i, %s
  br i1 %summed, label %written, label %add
add:
  %row = mul i32 %i, $n
  %place = add i32 %row, %j
  %k_at = getelementptr double, ptr %k, i32 %place
  %w_at = getelementptr double, ptr %w, i32 %i
  %slope = load double, ptr %k_at
  %weight = load double, ptr %w_at
  %term = fmul double %slope, %weight
  %more = fadd double %so_far, %term
  %i1 = add i32 %i, 1
  br label %sum
written:
  %y_at = getelementptr double, ptr %y, i32 %j
  %to_at = getelementptr double, ptr %to, i32 %j
  %start = load double, ptr %y_at
  %way = fmul double %h, %so_far
  %end = fadd double %start, %way
  store double %end, ptr %to_at
  %j1 = add i32 %j, 1
  %again = icmp ult i32 %j1, $n
  br i1 %again, label %entries, label %done
done:
  ret void
}

; Moves y from t by so many steps of length h, under generalised forces f, and returns how many of them are certain. At
; one that is not it stops, with y at its start.
define i32 @march(ptr %y, double %t, double %h, i32 %count, ptr %f$p_head) {
entry:
  %k = alloca [$slopes x double]
  %z = alloca [$n x double]
  %x = alloca [$n x double]
  %zv = getelementptr double, ptr %z, i32 $q
  %xv = getelementptr double, ptr %x, i32 $q
  br label %step
step:
  %i = phi i32 [ 0, %entry ], [ %i1, %keep ]
  %left = icmp ult i32 %i, %count
  br i1 %left, label %begin, label %done
begin:
  %whole = uitofp i32 %i to double
  %gone = fmul double %whole, %h
  %ti = fadd double %t, %gone
  br label %stage
stage:
  %s = phi i32 [ 0, %begin ], [ %s1, %sure ]
  %more = icmp ult i32 %s, $stages
  br i1 %more, label %evaluate, label %close
evaluate:
  %row = mul i32 %s, $stages
  %w = getelementptr double, ptr @stage_weights, i32 %row
  call void @combine(ptr %z, ptr %y, ptr %k, ptr %w, i32 %s, double %h)
  %c_at = getelementptr double, ptr @stage_times, i32 %s
  %c = load double, ptr %c_at
  %later = fmul double %c, %h
  %ts = fadd double %ti, %later
  %place = mul i32 %s, $n
  %ks = getelementptr double, ptr %k, i32 %place
  %kv = getelementptr double, ptr %ks, i32 $q
  %certain = call i32 @${name}_derivative(ptr %z, ptr %zv, double %ts, ptr %f$p, ptr %ks, ptr %kv)
  %good = icmp ne i32 %certain, 0
  br i1 %good, label %sure, label %done
sure:
  %s1 = add i32 %s, 1
  br label %stage
close:
  call void @combine(ptr %z, ptr %y, ptr %k, ptr @end_weights, i32 $stages, double %h)
  %te = fadd double %ti, %h
  %back = call i32 @${name}_projection(ptr %z, ptr %zv, double %te$p, ptr %x, ptr %xv)
  %there = icmp ne i32 %back, 0
  br i1 %there, label %keep, label %done
keep:
  call void @combine(ptr %y, ptr %x, ptr %k, ptr @end_weights, i32 0, double %h)
  %i1 = add i32 %i, 1
  br label %step
done:
  ret i32 %i
}
