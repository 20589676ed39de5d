/* The start of a program on a Cortex-M7, whose output goes through QEMU. */
extern void _start(void);
void reset(void);

__attribute__((section(".vectors"), used)) static void *const vectors[2] = { (void *)0x20400000, (void *)reset };

void reset(void)
{
    *(volatile unsigned *)0xE000ED88 |= 0xFu << 20; /* switches the floating-point unit on */
    __asm volatile("dsb\n isb");
    _start();
}
