"""A first task for the compose set-up; put your own modules beside this one."""

from taskframework import BackgroundTaskExecutable, TaskContext


class Greet(BackgroundTaskExecutable[str, str]):
    """Greets whoever the parameters name."""

    task_type = "greet"

    async def execute(self, context: TaskContext[str]) -> str:
        return f"Hello, {context.parameters}!"
