/* The ceiling: every packet is dropped where it arrives. */
__attribute__((section("xdp"), used)) int drop(void *context)
{
	(void)context;
	return 1; /* XDP_DROP */
}
char _license[] __attribute__((section("license"), used)) = "GPL";
