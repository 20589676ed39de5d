; What WebAssembly has no instruction for, and no library: fused products, and remainders of divisions. Both are exact
; before they are rounded, as in C, to the nearest number, ties to even.
;
; fma, source: Boldo & Melquiond (2008), Emulation of FMA and correctly rounded sums: proved algorithms using rounding to
; odd, IEEE Trans. Comput. 57(4). The exact product is a sum of two numbers (Dekker), the exact sum of three numbers is
; one of two, and the lower of these is rounded to odd, so that the last addition rounds once.

declare i64 @llvm.ctlz.i64(i64, i1)
declare double @llvm.fabs.f64(double)
declare double @llvm.copysign.f64(double, double)

; x + y as the rounded sum and its error (Knuth).
define internal {double, double} @two_sum(double %x, double %y) alwaysinline {
  %s = fadd double %x, %y
  %z = fsub double %s, %x
  %w = fsub double %s, %z
  %u = fsub double %x, %w
  %d = fsub double %y, %z
  %e = fadd double %u, %d
  %p = insertvalue {double, double} undef, double %s, 0
  %q = insertvalue {double, double} %p, double %e, 1
  ret {double, double} %q
}

; A number as the sum of two of 26 bits (Veltkamp).
define internal {double, double} @halves(double %x) alwaysinline {
  %c = fmul double %x, 134217729.0
  %d = fsub double %c, %x
  %high = fsub double %c, %d
  %low = fsub double %x, %high
  %p = insertvalue {double, double} undef, double %high, 0
  %q = insertvalue {double, double} %p, double %low, 1
  ret {double, double} %q
}

; x + y, rounded to the neighbour whose last bit is 1 where it is not exact.
define internal double @odd_sum(double %x, double %y) alwaysinline {
  %two = call {double, double} @two_sum(double %x, double %y)
  %s = extractvalue {double, double} %two, 0
  %e = extractvalue {double, double} %two, 1
  %bits = bitcast double %s to i64
  %others = bitcast double %e to i64
  %mixed = xor i64 %bits, %others
  %opposite = icmp slt i64 %mixed, 0
  %by = select i1 %opposite, i64 -1, i64 1
  %moved = add i64 %bits, %by
  %last = and i64 %bits, 1
  %even = icmp eq i64 %last, 0
  %inexact = fcmp une double %e, 0.0
  %move = and i1 %even, %inexact
  %kept = select i1 %move, i64 %moved, i64 %bits
  %result = bitcast i64 %kept to double
  ret double %result
}

; a b + c as two numbers, whose sum rounds as the exact one does. No part of the product may over- or underflow.
define internal {double, double} @near_product_sum(double %a, double %b, double %c) alwaysinline {
  %as = call {double, double} @halves(double %a)
  %bs = call {double, double} @halves(double %b)
  %ah = extractvalue {double, double} %as, 0
  %al = extractvalue {double, double} %as, 1
  %bh = extractvalue {double, double} %bs, 0
  %bl = extractvalue {double, double} %bs, 1
  %high = fmul double %a, %b
  %hh = fmul double %ah, %bh
  %hl = fmul double %ah, %bl
  %lh = fmul double %al, %bh
  %ll = fmul double %al, %bl
  %r1 = fsub double %hh, %high
  %r2 = fadd double %r1, %hl
  %r3 = fadd double %r2, %lh
  %low = fadd double %r3, %ll
  %ts = call {double, double} @two_sum(double %c, double %low)
  %th = extractvalue {double, double} %ts, 0
  %tl = extractvalue {double, double} %ts, 1
  %vs = call {double, double} @two_sum(double %high, double %th)
  %vh = extractvalue {double, double} %vs, 0
  %vl = extractvalue {double, double} %vs, 1
  %z = call double @odd_sum(double %tl, double %vl)
  %p = insertvalue {double, double} undef, double %vh, 0
  %q = insertvalue {double, double} %p, double %z, 1
  ret {double, double} %q
}

; a b + c, rounded once.
define hidden double @fma.f64(double %a, double %b, double %c) {
  %abits = bitcast double %a to i64
  %bbits = bitcast double %b to i64
  %cbits = bitcast double %c to i64
  %ashift = lshr i64 %abits, 52
  %bshift = lshr i64 %bbits, 52
  %cshift = lshr i64 %cbits, 52
  %ea = and i64 %ashift, 2047
  %eb = and i64 %bshift, 2047
  %ec = and i64 %cshift, 2047
  ; Exponents of a and b, both and together, in the middle of their range; and c far from infinity.
  %ealow = sub i64 %ea, 64
  %eblow = sub i64 %eb, 64
  %e = add i64 %ea, %eb
  %elow = sub i64 %e, 1200
  %afine = icmp ult i64 %ealow, 1900
  %bfine = icmp ult i64 %eblow, 1900
  %efine = icmp ult i64 %elow, 1800
  %cfine = icmp ult i64 %ec, 1990
  %f1 = and i1 %afine, %bfine
  %f2 = and i1 %efine, %cfine
  %fine = and i1 %f1, %f2
  br i1 %fine, label %near, label %far
near:
  %sum = call {double, double} @near_product_sum(double %a, double %b, double %c)
  %high = extractvalue {double, double} %sum, 0
  %low = extractvalue {double, double} %sum, 1
  %result = fadd double %high, %low
  ret double %result
far:
  %other = call double @fma.far(double %a, double %b, double %c)
  ret double %other
}

; 2^e for a normal power of two.
define internal double @power(i64 %e) alwaysinline {
  %biased = add i64 %e, 1023
  %bits = shl i64 %biased, 52
  %x = bitcast i64 %bits to double
  ret double %x
}

; x 2^e; rounds at most once if x is in the middle of its range.
define internal double @scaled(double %x, i64 %e) alwaysinline {
  %third = sdiv i64 %e, 3
  %two = mul i64 %third, 2
  %rest = sub i64 %e, %two
  %p = call double @power(i64 %third)
  %r = call double @power(i64 %rest)
  %y = fmul double %x, %p
  %z = fmul double %y, %p
  %w = fmul double %z, %r
  ret double %w
}

; The exponent of a finite number that is not zero.
define internal i64 @exponent(double %x) alwaysinline {
  %size = call double @llvm.fabs.f64(double %x)
  %bits = bitcast double %size to i64
  %biased = lshr i64 %bits, 52
  %zeros = call i64 @llvm.ctlz.i64(i64 %bits, i1 true)
  %small = sub i64 12, %zeros
  %normal = icmp ne i64 %biased, 0
  %e = select i1 %normal, i64 %biased, i64 %small
  %result = sub i64 %e, 1023
  ret i64 %result
}

; a b + c, rounded once, for numbers with extreme exponents, zeros, infinities and NaN.
define internal double @fma.far(double %a, double %b, double %c) noinline {
  %asize = call double @llvm.fabs.f64(double %a)
  %bsize = call double @llvm.fabs.f64(double %b)
  %csize = call double @llvm.fabs.f64(double %c)
  %product = fmul double %a, %b
  %plain = fadd double %product, %c
  %aproper = fcmp olt double %asize, 0x7FF0000000000000
  %bproper = fcmp olt double %bsize, 0x7FF0000000000000
  %asome = fcmp one double %a, 0.0
  %bsome = fcmp one double %b, 0.0
  %aok = and i1 %aproper, %asome
  %bok = and i1 %bproper, %bsome
  %ok = and i1 %aok, %bok
  br i1 %ok, label %factors, label %simple
simple:
  ret double %plain
factors:
  %cproper = fcmp olt double %csize, 0x7FF0000000000000
  br i1 %cproper, label %finite, label %endless
endless:
  ret double %c
finite:
  %csome = fcmp one double %c, 0.0
  br i1 %csome, label %all, label %alone
alone:
  ret double %product
all:
  %ea = call i64 @exponent(double %a)
  %eb = call i64 @exponent(double %b)
  %ec = call i64 @exponent(double %c)
  %e = add i64 %ea, %eb
  %d = sub i64 %ec, %e
  %beyond = icmp sgt i64 %d, 120
  br i1 %beyond, label %lost, label %felt
lost:
  ret double %c
felt:
  ; The product to between 1 and 4, and c with it; a c that is far below matters by its sign.
  %na = sub i64 0, %ea
  %nb = sub i64 0, %eb
  %nc = sub i64 0, %ec
  %am = call double @scaled(double %a, i64 %na)
  %bm = call double @scaled(double %b, i64 %nb)
  %cm = call double @scaled(double %c, i64 %nc)
  %deep = icmp slt i64 %d, -150
  %depth = select i1 %deep, i64 -150, i64 %d
  %cpower = call double @power(i64 %depth)
  %cs = fmul double %cm, %cpower
  %sum = call {double, double} @near_product_sum(double %am, double %bm, double %cs)
  %high = extractvalue {double, double} %sum, 0
  %low = extractvalue {double, double} %sum, 1
  %rounded = fadd double %high, %low
  %nothing = fcmp oeq double %rounded, 0.0
  br i1 %nothing, label %cancelled, label %some
cancelled:
  ret double 0.0
some:
  %er = call i64 @exponent(double %rounded)
  %place = add i64 %er, %e
  %tiny = icmp slt i64 %place, -1022
  br i1 %tiny, label %subnormal, label %normal
normal:
  %large = call double @scaled(double %rounded, i64 %e)
  ret double %large
subnormal:
  ; From 2^52 to 2^53 times the smallest number a sum is rounded to multiples of it.
  %ne = sub i64 -1022, %e
  %unit = call double @power(i64 %ne)
  %offset = call double @llvm.copysign.f64(double %unit, double %rounded)
  %os = call {double, double} @two_sum(double %offset, double %high)
  %oh = extractvalue {double, double} %os, 0
  %ol = extractvalue {double, double} %os, 1
  %rest = call double @odd_sum(double %ol, double %low)
  %there = fadd double %oh, %rest
  %back = fsub double %there, %offset
  %small = call double @scaled(double %back, i64 %e)
  %signed = call double @llvm.copysign.f64(double %small, double %rounded)
  ret double %signed
}

; The same in single precision: the product is exact in double precision.
define hidden float @fma.f32(float %a, float %b, float %c) {
  %x = fpext float %a to double
  %y = fpext float %b to double
  %z = fpext float %c to double
  %product = fmul double %x, %y
  %plain = fadd double %product, %z
  %size = call double @llvm.fabs.f64(double %plain)
  %proper = fcmp olt double %size, 0x7FF0000000000000
  br i1 %proper, label %finite, label %simple
finite:
  %odd = call double @odd_sum(double %product, double %z)
  %result = fptrunc double %odd to float
  ret float %result
simple:
  %other = fptrunc double %plain to float
  ret float %other
}

; The rest of x / y with the sign of x; exact.
define hidden double @fmod(double %x, double %y) {
  %ax = call double @llvm.fabs.f64(double %x)
  %ay = call double @llvm.fabs.f64(double %y)
  %xproper = fcmp olt double %ax, 0x7FF0000000000000
  %ysome = fcmp ogt double %ay, 0.0
  %ok = and i1 %xproper, %ysome
  br i1 %ok, label %start, label %unknown
unknown:
  %nothing = fmul double %x, %y
  %nan = fdiv double %nothing, %nothing
  ret double %nan
start:
  br label %loop
loop:
  %r = phi double [ %ax, %start ], [ %left, %take ]
  %more = fcmp oge double %r, %ay
  br i1 %more, label %take, label %done
take:
  ; The largest y 2^k that is not above r: their difference is exact.
  %er = call i64 @exponent(double %r)
  %ey = call i64 @exponent(double %ay)
  %k = sub i64 %er, %ey
  %s = call double @scaled(double %ay, i64 %k)
  %above = fcmp ogt double %s, %r
  %half = fmul double %s, 0.5
  %taken = select i1 %above, double %half, double %s
  %left = fsub double %r, %taken
  br label %loop
done:
  %result = call double @llvm.copysign.f64(double %r, double %x)
  ret double %result
}

define hidden float @fmodf(float %x, float %y) {
  %a = fpext float %x to double
  %b = fpext float %y to double
  %r = call double @fmod(double %a, double %b)
  %result = fptrunc double %r to float
  ret float %result
}
